// The colours of what the grammar names.

const LIGHT = {
  "": "1f2328", comment: "59636e", string: "0a6b2d", constant: "0550ae", keyword: "8250df",
  "keyword.operator": "1f2328", "keyword.other.unit": "0550ae", "storage.type": "953800", "entity.name.type": "953800",
  "entity.name.function": "6639ba", "entity.other.attribute-name": "a40e63", "variable.other.constant.dim": "0b6b75",
  "variable.parameter": "57461b",
};
const DARK = {
  "": "d8dbe2", comment: "9aa1ad", string: "a5d6a7", constant: "82b1ff", keyword: "c792ea",
  "keyword.operator": "d8dbe2", "keyword.other.unit": "82b1ff", "storage.type": "ffcb6b", "entity.name.type": "ffcb6b",
  "entity.name.function": "d0a8ff", "entity.other.attribute-name": "f78fb3", "variable.other.constant.dim": "80cbc4",
  "variable.parameter": "e0c9a0",
};

export function defineThemes({ editor }) {
  const define = (name, base, colours, back, hint, behindHint) => editor.defineTheme(name, {
    base, inherit: false, rules: Object.entries(colours).map(([token, foreground]) => ({ token, foreground })),
    colors: { "editor.background": back, "editorInlayHint.foreground": hint, "editorInlayHint.background": behindHint },
  });
  define("shard-light", "vs", LIGHT, "#ffffff", "#59636e", "#f0f2f5");
  define("shard-dark", "vs-dark", DARK, "#1e2129", "#9aa1ad", "#2a2e38");
}
