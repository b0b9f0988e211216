// Runs in the page of the plan, which follows the cursor itself: the editor goes to a line that is clicked, and a page
// that is made anew stays where it was scrolled to.
(() => {
  const editor = acquireVsCodeApi();
  const text = document.querySelector(".text");
  addEventListener("scroll", () => editor.setState([scrollY, text.scrollTop]));
  text.addEventListener("scroll", () => editor.setState([scrollY, text.scrollTop]));
  text.addEventListener("click", ({ isTrusted, target }) => {
    const line = Number(target.closest(".line")?.querySelector(".at")?.textContent);
    if (isTrusted && line) editor.postMessage({ line });
  });

  const before = editor.getState();
  // After the page has scrolled to what it chose itself.
  requestAnimationFrame(() => {
    if (before) [document.scrollingElement.scrollTop, text.scrollTop] = before;
    editor.postMessage({ ready: true });
  });
})();
