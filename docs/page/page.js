// The page: a program from the address, the editor, and the compiler in its worker.
import "./look.css";
import { complete, packed, unpacked } from "./address.js";
import { opened } from "./editor.js";

const FIRST = "examples-transformer";
const PATIENCE = 400; // milliseconds without a change after which the address has it
const at = name => document.getElementById(name);
const waiting = new Map(); // questions to the compiler that have no answer yet
let program = complete({ text: "" }), version = 0, worker = null, strategies = "", written = location.hash;

const { editor, model, hints, mistakes } = opened(at("editor"), ask);

function say(text, bad = false) {
  at("state").textContent = text;
  at("state").classList.toggle("bad", bad);
}

// A compiler that is started when it is first needed, or after it broke.
function start() {
  worker = self.shardCompiler.first ?? self.shardCompiler.start();
  self.shardCompiler.first = null;
  worker.onmessage = ({ data }) => heard(data);
  worker.onerror = event => heard({ fault: event.message || "the worker cannot be started", fatal: true });
  say("Loading the compiler");
  worker.early.forEach(heard);
}

function send() {
  if (!self.shardCompiler || !program) return;
  if (!worker) start();
  worker?.postMessage({ program, version: ++version });
  at("editor").dataset.sent = version;
}

function ask(what, line, column) {
  if (!worker) return null;
  return new Promise(resolve => {
    const id = waiting.size ? Math.max(...waiting.keys()) + 1 : 1;
    waiting.set(id, resolve);
    worker.postMessage({ ask: id, what, line, column });
  });
}

function heard(data) {
  if (data.fault) return broken(data);
  if (data.answer) {
    waiting.get(data.answer)?.(JSON.parse(data.found));
    waiting.delete(data.answer);
  } else if (data.ready) say("Checking");
  else if (data.version === version && data.found) show(JSON.parse(data.found), data.checked);
  if (data.whole && data.version === version) at("editor").dataset.whole = version;
}

function broken({ fault, fatal }) {
  if (fatal) {
    worker?.terminate();
    worker = null;
    waiting.forEach(resolve => resolve(null));
    waiting.clear();
  }
  const what = fault.replace(/\.$/, "");
  say(`A fault of this page, not of your program: ${what}. The next change of the program is checked anew.`, true);
}

// new marks replace old ones; hints stay until a plan has others.
function show(found, checked) {
  mistakes(found.mistakes);
  if (!checked) {
    hints(found.hints);
    at("editor").dataset.planned = version;
  }
  list(found.mistakes);
  choose(found);
  const chosen = found.strategies.find(each => each.chosen), errors = found.mistakes.length;
  if (errors) return say(errors === 1 ? "1 mistake" : `${errors} mistakes`);
  say(chosen ? `${chosen.name}: ${chosen.text}` : "No mistake");
}

function choose({ strategies: all, ranks }) {
  const select = at("strategy"), now = JSON.stringify(all.map(each => each.name));
  if (now !== strategies) select.replaceChildren(...all.map(each => new Option(each.name)));
  strategies = now;
  select.disabled = !all.length;
  select.value = all.find(each => each.chosen)?.name ?? "";
  if (ranks) at("ranks").placeholder = ranks;
}

function list(found) {
  at("mistakes").hidden = !found.length;
  at("mistakes").replaceChildren(...found.map(each => {
    const line = document.createElement("p"), link = document.createElement("a"), go = document.createElement("button");
    link.href = `../codes/${each.code}.html`;
    link.textContent = each.code;
    go.textContent = `line ${each.start[0]}: ${each.text}`;
    go.className = each.severity;
    go.onclick = () => {
      editor.setPosition({ lineNumber: each.start[0], column: each.start[1] });
      editor.revealLineInCenter(each.start[0]);
      editor.focus();
    };
    line.append(link, go);
    return line;
  }));
}

let later = 0;
function changed() {
  send();
  clearTimeout(later);
  later = setTimeout(write, PATIENCE);
}

async function write() {
  const hash = await packed(program);
  written = hash;
  history.replaceState(null, "", hash || location.pathname + location.search);
  return hash;
}

// A program that is given has its own ranks and strategy; texts of an editor end lines alike.
function open(given) {
  program = given;
  at("ranks").value = program.ranks ?? "";
  const words = Object.entries(program.overrides).map(([path, value]) => `\`--set ${path}=${value}\``);
  at("note").hidden = !words.length;
  at("note").textContent = `In the text it is checked with ${words.join(" and ")}, which this page does not do.`;
  if (model.getValue() === given.text) send();
  else model.setValue(given.text);
}

// What lies beside the page comes as a script that calls `shardProgram`.
function fetched(name) {
  return new Promise((resolve, reject) => {
    self.shardProgram = found => resolve(complete(found));
    const script = document.createElement("script");
    script.src = `programs/${name}.js`;
    script.onerror = () => reject(new Error(`there is no program ${name}`));
    document.head.append(script);
  });
}

async function begin() {
  const linked = location.hash.length > 1 ? await unpacked(location.hash) : null;
  if (linked) return open(linked);
  const name = new URLSearchParams(location.search).get("program") ?? FIRST;
  const found = /^[\w-]+$/.test(name) ? await fetched(name).catch(() => null) : null;
  open(found ?? complete({ text: `# There is no program of the name in the address.\n` }));
  if (location.hash.length > 1) say("The address holds no program; it may have been cut.", true);
}

model.onDidChangeContent(() => {
  const text = model.getValue();
  const other = text !== program.text;
  program = { ...program, text };
  if (other) changed();
  else send();
});
at("strategy").onchange = () => {
  program = { ...program, strategy: at("strategy").value };
  changed();
};
at("ranks").oninput = () => {
  const ranks = at("ranks").valueAsNumber;
  program = { ...program, ranks: Number.isInteger(ranks) && ranks > 0 ? ranks : null };
  changed();
};
at("link").onclick = async () => {
  const hash = await write();
  if (!hash) return say("The program is too long for a link.", true);
  const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  say(copied ? "The link is copied." : "The link is the address of this page.");
};
addEventListener("hashchange", () => location.hash !== written && begin());
at("compiler").addEventListener("load", send);
begin();
