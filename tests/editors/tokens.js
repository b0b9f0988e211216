// FOLDER GRAMMAR < {name: text} -> a line for each token: [name, line, start, end, scope], as VS Code colours them.
const fs = require("fs");
const [folder, place] = process.argv.slice(2);
const textmate = require(`${folder}/vscode-textmate`);
const oniguruma = require(`${folder}/vscode-oniguruma`);

async function main() {
  await oniguruma.loadWASM(fs.readFileSync(`${folder}/vscode-oniguruma/release/onig.wasm`).buffer);
  const registry = new textmate.Registry({
    onigLib: Promise.resolve({
      createOnigScanner: patterns => new oniguruma.OnigScanner(patterns),
      createOnigString: text => new oniguruma.OnigString(text),
    }),
    loadGrammar: async () => textmate.parseRawGrammar(fs.readFileSync(place, "utf8"), place),
  });
  const grammar = await registry.loadGrammar("source.shard");
  for (const [name, text] of Object.entries(JSON.parse(fs.readFileSync(0, "utf8")))) {
    let state = textmate.INITIAL;
    text.split("\n").forEach((line, number) => {
      const found = grammar.tokenizeLine(line, state);
      state = found.ruleStack;
      for (const { startIndex, endIndex, scopes } of found.tokens)
        console.log(JSON.stringify([name, number, startIndex, endIndex, scopes.length > 1 ? scopes.at(-1) : ""]));
    });
  }
}
main();
