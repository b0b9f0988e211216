// node bundle.mjs MODULES SOURCES TARGET: puts into TARGET the page and the compiler in one script each. MODULES: the
// folder node_modules; SOURCES: a zip of the compiler. Bytes are in the scripts, compressed, because a page from a
// disk may read no other file.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const [modules, sources, target] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const esbuild = createRequire(join(modules, "_"))("esbuild");
const options = {
  bundle: true, minify: true, format: "iife", target: "es2022", nodePaths: [modules], logLevel: "error", write: false,
  loader: { ".ttf": "dataurl", ".wasm": "binary", ".py": "text" }, legalComments: "none", outdir: target,
};

function bundled(name, more = {}) {
  const entry = join(here, name);
  return esbuild.buildSync({ ...options, entryPoints: [entry], ...more }).outputFiles;
}

// Python reads compiled modules several times faster, and its own version is the one to compile them.
async function compiled(zip) {
  const { loadPyodide } = await import(pathToFileURL(join(modules, "pyodide", "pyodide.mjs")));
  const python = await loadPyodide();
  python.unpackArchive(readFileSync(zip).buffer, "zip", { extractDir: "/sources" });
  python.runPython(`
import compileall, pathlib, py_compile, shutil
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
assert compileall.compile_dir("/sources", quiet=1, legacy=True, stripdir="/sources", invalidation_mode=mode)
for path in pathlib.Path("/sources").rglob("*.py"):
    path.unlink()
shutil.make_archive("/compiled", "tar", "/sources")`);
  return python.FS.readFile("/compiled.tar");
}

const packed = bytes => gzipSync(bytes, { level: 9 }).toString("base64");
const pyodide = name => readFileSync(join(modules, "pyodide", name));
// A page from a disk has no worker that is a module, and pyodide takes no other: it goes by `importScripts`. What it
// imports under node is not asked for here.
const [worker] = bundled("worker.js", {
  external: ["node:*", "ws"], banner: { js: "self.importScripts = undefined;" },
  define: { "import.meta.url": "self.location.href" },
});
const parts = {
  wasm: packed(pyodide("pyodide.asm.wasm")), library: packed(pyodide("python_stdlib.zip")),
  shardlang: packed(await compiled(sources)),
};
writeFileSync(join(target, "compiler.js"), `self.shardCompiler = {
  parts: ${JSON.stringify(parts)},
  worker: ${JSON.stringify(worker.text)},
  start() {
    const worker = new Worker(URL.createObjectURL(new Blob([this.worker], { type: "text/javascript" })));
    worker.early = []; // what it says before the page listens
    worker.onmessage = ({ data }) => worker.early.push(data);
    worker.onerror = ({ message }) => worker.early.push({ fault: message, fatal: true });
    worker.postMessage({ start: this.parts });
    return worker;
  },
};
shardCompiler.first = shardCompiler.start();
`);
for (const { path, contents } of bundled("page.js")) writeFileSync(path, contents);
