// The colours of what the grammar names.

const LIGHT = {
  "": "1f2328", comment: "59636e", string: "0a6b2d", constant: "0550ae", keyword: "8250df", "keyword.operator": "1f2328",
  "keyword.other.unit": "0550ae", "storage.type": "953800", "entity.name.type": "953800", "entity.name.function": "6639ba",
  "entity.other.attribute-name": "a40e63", "variable.other.constant.dim": "0b6b75", "variable.parameter": "57461b",
};
const DARK = {
  "": "d8dbe2", comment: "9aa1ad", string: "a5d6a7", constant: "82b1ff", keyword: "c792ea", "keyword.operator": "d8dbe2",
  "keyword.other.unit": "82b1ff", "storage.type": "ffcb6b", "entity.name.type": "ffcb6b", "entity.name.function": "d0a8ff",
  "entity.other.attribute-name": "f78fb3", "variable.other.constant.dim": "80cbc4", "variable.parameter": "e0c9a0",
};

export function defineThemes({ editor }) {
  const rules = colours => Object.entries(colours).map(([token, foreground]) => ({ token, foreground }));
  editor.defineTheme("shard-light", { base: "vs", inherit: false, rules: rules(LIGHT), colors: {
    "editor.background": "#ffffff", "editorInlayHint.foreground": "#59636e", "editorInlayHint.background": "#f0f2f5" } });
  editor.defineTheme("shard-dark", { base: "vs-dark", inherit: false, rules: rules(DARK), colors: {
    "editor.background": "#1e2129", "editorInlayHint.foreground": "#9aa1ad", "editorInlayHint.background": "#2a2e38" } });
}
