// The compiler, in a worker: programs and questions come as messages, what is found of them goes as messages.
// The newest program is checked at once and planned when no other has come for a moment.
import { loadPyodide } from "pyodide";
import createPyodideModule from "pyodide/pyodide.asm.mjs";
import { info } from "pyodide/pyodide-lock.json";
import checker from "./checker.py";

const QUIET = 50; // milliseconds without a change after which a plan is made
const read = self.fetch.bind(self);
let language = null, latest = null, more = false, wake = () => {};
const asked = [];

onmessage = ({ data }) => {
  if (data.start) start(data.start).then(work).catch(fault);
  if (data.program) latest = data;
  if (data.ask) asked.push(data);
  wake();
};

// What bundle.mjs has packed: bytes, compressed, in base64.
async function unpacked(text, type) {
  const packed = await read(`data:;base64,${text}`);
  const bytes = packed.body.pipeThrough(new DecompressionStream("gzip"));
  return new Response(bytes, { headers: { "Content-Type": type } });
}

async function start({ wasm, library, shardlang }) {
  // pyodide fetches two files, which are here already: a page from a disk may fetch none.
  self.fetch = address => {
    const name = String(address).split("/").pop();
    if (name === "pyodide.asm.wasm") return unpacked(wasm, "application/wasm");
    if (name === "python_stdlib.zip") return unpacked(library, "application/zip");
    return Promise.reject(new Error(`the page asks for ${address}, which it does not have`));
  };
  // pyodide keeps this reason to itself, and waits for ever.
  const instantiate = WebAssembly.instantiateStreaming;
  WebAssembly.instantiateStreaming = (...words) => instantiate(...words).catch(reason => {
    fault(reason);
    throw reason;
  });
  const sources = unpacked(shardlang, "application/x-tar").then(all => all.arrayBuffer());
  const lockFileContents = { info, packages: {} }; // no package is installed
  const python = await loadPyodide({ createPyodideModule, lockFileContents, indexURL: "page:/" });
  const home = python.runPython("import site; site.getsitepackages()[0]");
  python.unpackArchive(await sources, "tar", { extractDir: home });
  python.FS.mkdir("/program");
  python.runPython(checker);
  language = Object.fromEntries(
    ["checked", "planned", "pointed", "offered"].map(name => [name, python.globals.get(name)]));
  postMessage({ ready: true });
}

async function work() {
  for (;;) {
    try {
      if (latest) check();
      else if (asked.length) answer(asked.shift());
      else if (more) await plan();
      else await new Promise(resolve => (wake = resolve));
    } catch (reason) {
      more = false;
      fault(reason);
    }
    await pause(0); // messages that have come meanwhile are read
  }
}

function check() {
  const { program, version } = latest;
  latest = null;
  postMessage({ version, checked: true, found: language.checked(JSON.stringify(program)) });
  more = version;
}

async function plan() {
  await pause(QUIET);
  if (latest || asked.length) return;
  const version = more, found = language.planned();
  if (!found) more = false;
  postMessage(found ? { version, found } : { version, whole: true });
}

function answer({ ask, what, line, column }) {
  let found = "null";
  try {
    found = language[what](line, column);
  } finally {
    postMessage({ answer: ask, found });
  }
}

function pause(milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds));
}

// After an exception of Python the compiler goes on; after any other it is no longer to be used.
function fault(reason) {
  console.error(reason);
  const ours = reason?.constructor?.name === "PythonError";
  const lines = String(reason?.message ?? reason).trim().split("\n");
  postMessage({ fault: ours ? lines.at(-1) : lines[0], fatal: !ours });
}
