// Starts `shardc lsp`, and has what no server can have: the commands that ask, and the plan beside the text.
const { execFile, spawn } = require("child_process");
const { promisify } = require("util");
const vscode = require("vscode");
const { LanguageClient, State } = require("vscode-languageclient/node");
const { PlanPanel } = require("./panel");

let client;
let panel;
// The strategy and the ranks that a person chose for a file, by the file's URI.
const chosen = new Map();

exports.activate = async context => {
  panel = new PlanPanel(uri => request("shard.report", uri));
  client = new LanguageClient("shard", "Shard", server, options());
  const commands = {
    "shard.chooseStrategy": chooseStrategy,
    "shard.chooseRanks": chooseRanks,
    "shard.planBeside": () => withProgram(editor => panel.show(editor)),
    "shard.restart": () => client.restart(),
  };
  for (const [name, command] of Object.entries(commands))
    context.subscriptions.push(vscode.commands.registerCommand(name, command));
  context.subscriptions.push(
    panel,
    vscode.workspace.onDidChangeConfiguration(change => change.affectsConfiguration("shard") && restart()),
    vscode.workspace.onDidChangeTextDocument(({ document }) => panel.edited(document.uri.toString())),
    vscode.window.onDidChangeTextEditorSelection(({ textEditor }) => panel.follow(textEditor)),
  );
  await start();
};

exports.deactivate = () => client && client.stop();

function settings() {
  return vscode.workspace.getConfiguration("shard");
}

// A function, so that a restart takes the path that the settings have then.
async function server() {
  const child = spawn(settings().get("path"), ["lsp"], { stdio: "pipe" });
  await new Promise((resolve, reject) => child.once("spawn", resolve).once("error", reject));
  return child;
}

function options() {
  return {
    documentSelector: [{ language: "shard" }],
    initializationOptions: () => ({
      ranks: settings().get("ranks"),
      strategy: settings().get("strategy") || null,
      hints: { layouts: settings().get("hints.layouts"), sent: settings().get("hints.sent") },
    }),
    // A click on what the server shows above a strategy comes through here too.
    middleware: {
      executeCommand: async (command, args, next) => {
        const answer = await next(command, args);
        if (command === "shard.choose") await remember(...args);
        return answer;
      },
    },
  };
}

async function start() {
  const path = settings().get("path");
  try {
    const version = await promisify(execFile)(path, ["--version"]);
    client.info(version.stdout.trim());
    await client.start();
  } catch (error) {
    const missing = error.code === "ENOENT" ? `There is no \`${path}\`.` : `\`${path}\` did not start: ${error.message}.`;
    const help = "Type `pip install shardlang`, or set `shard.path` to where shardc is.";
    const answer = await vscode.window.showErrorMessage(`${missing} ${help}`, "Open the setting");
    if (answer) vscode.commands.executeCommand("workbench.action.openSettings", "shard.path");
  }
}

async function restart() {
  chosen.clear();
  if (client.state === State.Running) await client.stop();
  await start();
}

function request(command, ...args) {
  return client.sendRequest("workspace/executeCommand", { command, arguments: args });
}

function withProgram(then) {
  const editor = vscode.window.activeTextEditor;
  if (editor && editor.document.languageId === "shard") return then(editor);
  return vscode.window.showInformationMessage("Open a file of Shard first.");
}

function choice(uri) {
  return chosen.get(uri) || { strategy: settings().get("strategy") || null, ranks: settings().get("ranks") };
}

// Where no ranks are told, the server keeps those that it has.
async function remember(uri, strategy, ranks) {
  chosen.set(uri, { strategy, ranks: ranks || choice(uri).ranks });
  await panel.refresh(uri);
}

async function choose(uri, { strategy, ranks }) {
  await request("shard.choose", uri, strategy, ranks);
  await remember(uri, strategy, ranks);
}

function chooseStrategy() {
  return withProgram(async editor => {
    const uri = editor.document.uri.toString();
    const strategies = await request("shard.strategies", uri);
    if (!strategies || !strategies.length) return vscode.window.showInformationMessage("The file has no strategy.");
    strategies.sort((one, other) => other.chosen - one.chosen); // the list begins at the one that is shown
    const items = strategies.map(({ name, chosen }) => ({ label: name, description: chosen ? "chosen" : "" }));
    const item = await vscode.window.showQuickPick(items, { placeHolder: "The strategy that layouts and bytes are for" });
    if (item) await choose(uri, { ...choice(uri), strategy: item.label });
  });
}

function chooseRanks() {
  return withProgram(async editor => {
    const uri = editor.document.uri.toString();
    const before = choice(uri);
    const ranks = await vscode.window.showInputBox({
      prompt: "How many ranks layouts and bytes are for",
      value: before.ranks ? String(before.ranks) : "",
      validateInput: text => (/^[1-9]\d{0,6}$/.test(text.trim()) ? null : "Type a whole number of ranks, such as 8."),
    });
    if (ranks) await choose(uri, { ...before, ranks: Number(ranks) });
  });
}
