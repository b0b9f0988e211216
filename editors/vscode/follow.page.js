// Runs in the page of the plan: the page shows the line of the cursor, and the editor goes to a line that is clicked.
(() => {
  const editor = acquireVsCodeApi();
  const text = document.querySelector(".text");
  const [statements] = Object.values(DATA.plans[0].text);
  const rows = new Map();
  for (const row of text.querySelectorAll(".line:not(.head)")) {
    const number = Number(row.querySelector(".at")?.textContent);
    if (number) rows.set(number, row);
  }

  // A statement is shown at its first line; of several at one line the shortest.
  function rowOf(line) {
    const of = statements.filter(({ lines: [first, last] }) => first <= line && line <= last);
    const length = ({ lines: [first, last] }) => last - first;
    of.sort((one, other) => length(one) - length(other));
    return rows.get(of.length ? of[0].lines[0] : line);
  }

  function follow({ line, moved }) {
    const row = rowOf(line);
    if (!row) return;
    text.querySelector("[data-cursor]")?.removeAttribute("data-cursor");
    row.setAttribute("data-cursor", "");
    if (row.classList.contains("told")) row.click();
    if (moved) row.scrollIntoView({ block: "center" });
  }

  addEventListener("message", ({ data }) => follow(data));
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
