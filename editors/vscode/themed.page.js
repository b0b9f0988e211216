// Runs in the page of the plan before it draws: it is dark where the editor is, whatever the system is.
{
  const dark = /vscode-(dark|high-contrast(?!-light))/.test(document.body.className);
  const rules = [...document.styleSheets].flatMap(({ cssRules }) => [...cssRules]);
  for (const { media } of rules.filter(rule => rule.media && rule.media.mediaText.includes("prefers-color-scheme")))
    media.mediaText = media.mediaText.includes("dark") === dark ? "all" : "not all";
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
}
