// The plan beside the text: the page of `shardc report` in a panel, which is made anew after an edit and follows the
// cursor. Lines are counted from 1.
const vscode = require("vscode");
const follow = require("./follow.page.js");
const themed = require("./themed.page.js");

// Milliseconds without a key after which the page is made anew.
const QUIET = 500;

class PlanPanel {
  // report: the URI of a program -> {html}, whose html is null where the program has mistakes.
  constructor(report) {
    this.report = report;
    this.panel = null;
    this.uri = null;
    this.line = 1;
    this.moved = false;
    this.asked = 0;
    this.timer = null;
  }

  async show(editor) {
    this.uri = editor.document.uri.toString();
    if (!this.panel) {
      const place = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
      this.panel = vscode.window.createWebviewPanel("shard.plan", "Plan", place, { enableScripts: true, localResourceRoots: [] });
      this.panel.onDidDispose(() => (this.panel = null));
      this.panel.webview.onDidReceiveMessage(message => (message.ready ? this.post() : this.reveal(message)));
    }
    this.panel.title = `Plan of ${editor.document.uri.path.split("/").pop()}`;
    this.line = editor.selection.active.line + 1;
    this.moved = true;
    await this.refresh(this.uri);
  }

  edited(uri) {
    if (!this.panel || uri !== this.uri) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(uri), QUIET);
  }

  // Asks for the page where it is of this program. Of several answers the last one that was asked for counts, and a
  // program with mistakes leaves the page of the text before.
  async refresh(uri) {
    if (!this.panel || uri !== this.uri) return;
    const asked = ++this.asked;
    const answer = await this.report(uri).catch(() => null);
    if (!this.panel || asked !== this.asked) return;
    if (answer && answer.html) this.panel.webview.html = withScripts(answer.html);
    else if (!this.panel.webview.html)
      this.panel.webview.html = "<p>There is no plan yet: the program has mistakes, which its text shows.</p>";
  }

  // The plan goes on to another program where a person goes on to it.
  async follow(editor) {
    if (!this.panel || editor.document.languageId !== "shard") return;
    if (editor.document.uri.toString() !== this.uri) return this.show(editor);
    const line = editor.selection.active.line + 1;
    if (line === this.line) return;
    this.line = line;
    this.moved = true;
    this.post();
  }

  // A page that is made anew stays where it was scrolled to, unless the cursor moved.
  post() {
    this.panel.webview.postMessage({ line: this.line, moved: this.moved });
    this.moved = false;
  }

  async reveal({ line }) {
    const document = await vscode.workspace.openTextDocument(vscode.Uri.parse(this.uri));
    const shown = vscode.window.visibleTextEditors.find(editor => editor.document === document);
    const range = document.lineAt(Math.min(line, document.lineCount) - 1).range;
    this.line = range.start.line + 1;
    const viewColumn = shown ? shown.viewColumn : vscode.ViewColumn.One;
    const editor = await vscode.window.showTextDocument(document, { viewColumn, preserveFocus: true });
    editor.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
    editor.selection = new vscode.Selection(range.start, range.start);
  }

  dispose() {
    clearTimeout(this.timer);
    if (this.panel) this.panel.dispose();
  }
}

// What stands in a replacement is not read as a pattern, where it is a function's.
function withScripts(html) {
  return html
    .replace('<main id="main">', found => `<script>${themed}</script>${found}`)
    .replace(/<\/body>(?![^]*<\/body>)/, found => `<script>${follow}</script>${found}`);
}

module.exports = { PlanPanel };
