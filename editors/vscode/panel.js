// The plan beside the text: the page of `shardc report` in a panel. It gets the line of the cursor, {line: 12}, counted
// from 1, and where it sends such a message itself, the editor goes to that line.
const vscode = require("vscode");

class PlanPanel {
  // report: the URI of a program -> {html} or null.
  constructor(report) {
    this.report = report;
    this.panel = null;
    this.uri = null;
    this.line = 0;
    this.asked = 0;
  }

  async show(editor) {
    this.uri = editor.document.uri.toString();
    if (!this.panel) {
      const place = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
      this.panel = vscode.window.createWebviewPanel("shard.plan", "Plan", place, { enableScripts: true, retainContextWhenHidden: true });
      this.panel.onDidDispose(() => (this.panel = null));
      this.panel.webview.onDidReceiveMessage(message => this.reveal(message));
    }
    this.panel.title = `Plan of ${editor.document.uri.path.split("/").pop()}`;
    this.line = editor.selection.active.line + 1;
    await this.refresh(this.uri);
  }

  // Asks for the page anew where it is of this program. Of several answers the last one that was asked for counts.
  async refresh(uri) {
    if (!this.panel || uri !== this.uri) return;
    const asked = ++this.asked;
    const answer = await this.report(uri).catch(error => ({ html: "", message: error.message }));
    if (!this.panel || asked !== this.asked) return;
    if (answer && answer.html) {
      this.panel.webview.html = answer.html;
      this.post();
    } else if (!this.panel.webview.html) {
      this.panel.webview.html = "<p>There is no plan yet: the program has mistakes, which its text shows.</p>";
    }
  }

  follow(editor) {
    if (!this.panel || editor.document.uri.toString() !== this.uri) return;
    this.line = editor.selection.active.line + 1;
    this.post();
  }

  post() {
    this.panel.webview.postMessage({ line: this.line });
  }

  async reveal({ line }) {
    if (!Number.isInteger(line) || line < 1) return;
    const document = await vscode.workspace.openTextDocument(vscode.Uri.parse(this.uri));
    const shown = vscode.window.visibleTextEditors.find(editor => editor.document === document);
    const range = document.lineAt(Math.min(line, document.lineCount) - 1).range;
    const editor = await vscode.window.showTextDocument(document, { viewColumn: shown && shown.viewColumn, preserveFocus: true });
    editor.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    editor.selection = new vscode.Selection(range.start, range.start);
  }

  dispose() {
    if (this.panel) this.panel.dispose();
  }
}

module.exports = { PlanPanel };
