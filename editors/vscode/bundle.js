// Puts into dist/ what the extension is made of: the client in one file, and the grammar, which the repository has once.
const { copyFileSync, mkdirSync } = require("fs");
const { join } = require("path");
const esbuild = require("esbuild");

const repository = join(__dirname, "..", "..");
const dist = join(__dirname, "dist");
mkdirSync(dist, { recursive: true });
copyFileSync(join(repository, "grammars", "shard.tmLanguage.json"), join(dist, "shard.tmLanguage.json"));
copyFileSync(join(repository, "LICENSE"), join(__dirname, "LICENSE"));
esbuild.buildSync({
  entryPoints: [join(__dirname, "client.js")],
  outfile: join(dist, "client.js"),
  bundle: true,
  minify: true,
  platform: "node",
  external: ["vscode"],
  // Scripts that the client puts into a page.
  loader: { ".page.js": "text" },
});
