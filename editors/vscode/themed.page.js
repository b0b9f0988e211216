// Runs in the page of the plan before it draws: it is dark where the editor is, whatever the system is.
{
  const rules = [...document.styleSheets].flatMap(({ cssRules }) => [...cssRules])
    .filter(({ media }) => media && media.mediaText.includes("prefers-color-scheme"))
    .map(({ media }) => [media, media.mediaText.includes("dark")]);
  const colour = () => {
    const dark = /vscode-(dark|high-contrast(?!-light))/.test(document.body.className);
    for (const [media, whereDark] of rules) media.mediaText = whereDark === dark ? "all" : "not all";
    document.documentElement.style.colorScheme = dark ? "dark" : "light";
  };
  colour();
  new MutationObserver(colour).observe(document.body, { attributeFilter: ["class"] });
}
