// The editor: colours by the grammar, mistakes as marks with their fixes, hints behind lines, and texts and offers
// that `ask` gives.
import * as monaco from "monaco-editor/editor/editor.api.js";
import "./features.js";
import { loadWASM, OnigScanner, OnigString } from "vscode-oniguruma";
import { INITIAL, Registry } from "vscode-textmate";
import onig from "vscode-oniguruma/release/onig.wasm";
import grammar from "../../grammars/shard.tmLanguage.json";
import * as language from "../../editors/vscode/language-configuration.json";
import { defineThemes } from "./themes.js";

const SEVERITIES = {
  error: monaco.MarkerSeverity.Error, warning: monaco.MarkerSeverity.Warning, note: monaco.MarkerSeverity.Info,
};
const KINDS = monaco.languages.CompletionItemKind;
const OFFERS = { keyword: KINDS.Keyword, unit: KINDS.Unit, snippet: KINDS.Snippet };

export const range = ({ start, end }) => new monaco.Range(...start, ...end);

class LineState {
  constructor(stack) { this.stack = stack; }
  clone() { return new LineState(this.stack); }
  equals(other) { return other.stack === this.stack; }
}

async function colour() {
  await loadWASM(onig);
  const onigLib = Promise.resolve({
    createOnigScanner: patterns => new OnigScanner(patterns), createOnigString: text => new OnigString(text),
  });
  const registry = new Registry({ onigLib, loadGrammar: async () => grammar });
  const rules = await registry.loadGrammar(grammar.scopeName);
  monaco.languages.setTokensProvider("shard", {
    getInitialState: () => new LineState(INITIAL),
    tokenize(line, state) {
      const found = rules.tokenizeLine(line, state.stack);
      const tokens = found.tokens.map(({ startIndex, scopes }) => ({ startIndex, scopes: scopes.at(-1) }));
      return { endState: new LineState(found.ruleStack), tokens };
    },
  });
}

// ask(what, line, column): what the compiler answers.
export function opened(place, ask) {
  monaco.languages.register({ id: "shard" });
  const { wordPattern, indentationRules, onEnterRules, ...rest } = language;
  monaco.languages.setLanguageConfiguration("shard", {
    ...rest, wordPattern: new RegExp(wordPattern),
    indentationRules: {
      increaseIndentPattern: new RegExp(indentationRules.increaseIndentPattern),
      decreaseIndentPattern: new RegExp(indentationRules.decreaseIndentPattern),
    },
  });
  colour().catch(reason => console.error("no colours:", reason));
  const model = monaco.editor.createModel("", "shard");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  defineThemes(monaco);
  const theme = () => (dark.matches ? "shard-dark" : "shard-light");
  const editor = monaco.editor.create(place, {
    model, theme: theme(), automaticLayout: true, fontSize: 14, tabSize: 2, minimap: { enabled: false },
    scrollBeyondLastLine: false, wordWrap: "on", wrappingIndent: "indent", fixedOverflowWidgets: true,
    wordBasedSuggestions: "off", ariaLabel: "The program. Control M lets Tab leave the editor.",
    inlayHints: { maximumLength: 80 }, lineNumbersMinChars: 3, renderLineHighlight: "none",
    guides: { indentation: false },
  });
  dark.addEventListener("change", () => monaco.editor.setTheme(theme()));
  const hints = shownHints(model);
  showTexts(ask);
  const fixes = shownFixes(model);
  const mistakes = found => {
    monaco.editor.setModelMarkers(model, "shard", found.map(marker));
    fixes(found);
  };
  return { editor, model, hints, mistakes };
}

function marker(it) {
  const target = monaco.Uri.parse(new URL(`../codes/${it.code}.html`, location.href).href);
  const elsewhere = it.related.filter(each => !each.own);
  const message = [it.text, ...elsewhere.map(each => `${each.file}:${each.start[0]}: ${each.text}`)].join("\n");
  return { ...range(it), message, severity: SEVERITIES[it.severity], code: { value: it.code, target } };
}

// Hints keep their places while the text changes, until there are new ones.
function shownHints(model) {
  let ids = [], texts = [];
  const changed = new monaco.Emitter();
  const options = { stickiness: monaco.editor.TrackedRangeStickiness.GrowsOnlyWhenTypingAfter };
  const hint = (id, index) => {
    const now = model.getDecorationRange(id);
    return now && { label: texts[index], position: now.getEndPosition(), paddingLeft: true };
  };
  monaco.languages.registerInlayHintsProvider("shard", {
    onDidChangeInlayHints: changed.event,
    provideInlayHints(_, within) {
      const found = ids.map(hint).filter(each => each && within.containsPosition(each.position));
      return { hints: found, dispose() {} };
    },
  });
  return found => {
    texts = found.map(each => each.text);
    ids = model.deltaDecorations(ids, found.map(({ at }) => ({ range: range({ start: at, end: at }), options })));
    changed.fire();
  };
}

function shownFixes(model) {
  let found = [];
  monaco.languages.registerCodeActionProvider("shard", {
    provideCodeActions(_, at) {
      const touched = found.filter(each => monaco.Range.areIntersectingOrTouching(range(each), at));
      const actions = touched.flatMap(each => each.fixes.map(fix => ({
        title: fix.title, kind: "quickfix", isPreferred: each.fixes.length === 1,
        edit: { edits: fix.edits.map(edit => (
          { resource: model.uri, versionId: undefined, textEdit: { range: range(edit), text: edit.text } })) },
      })));
      return { actions, dispose() {} };
    },
  });
  return mistakes => (found = mistakes);
}

function showTexts(ask) {
  monaco.languages.registerHoverProvider("shard", {
    async provideHover(_, { lineNumber, column }) {
      const found = await ask("pointed", lineNumber, column);
      return found && { range: range(found), contents: [{ value: found.text }] };
    },
  });
  monaco.languages.registerCompletionItemProvider("shard", {
    triggerCharacters: [".", "@", "(", ",", " ", '"'],
    async provideCompletionItems(_, { lineNumber, column }) {
      const found = (await ask("offered", lineNumber, column)) ?? [];
      return { suggestions: found.map(offer) };
    },
  });
}

function offer(it, index) {
  const insertTextRules = it.snippet ? monaco.languages.CompletionItemInsertTextRule.InsertAsSnippet : undefined;
  return {
    label: it.label, kind: OFFERS[it.kind] ?? KINDS.Field, detail: it.detail, documentation: { value: it.doc },
    insertText: it.text, insertTextRules, range: range(it), sortText: String(index).padStart(4, "0"),
  };
}
