"""The page of `shardc report` as a browser shows it: what belongs together is marked, editors are followed, and names
of a program stay text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import page_of_plans
from tests.cli.process import NET
from tests.emit.sources import planned
from tests.views.test_report import LARGE, data, page

THREE_D = ("transformer.shard", "three_d", 8)
# Runs in the page: `say` keeps what a test compares, `after` waits until messages have come.
HELPERS = """
const said = {}, faults = [];
addEventListener("error", event => faults.push(event.message));
const all = (of, within = document) => [...within.querySelectorAll(of)];
const named = (of, text) => all(of).find(each => each.textContent === text);
const marked = () => all(".line.marked").map(row => row.querySelector(".code").textContent.trim());
const bar = document.querySelector(".chosen");
const chosenText = () => bar.hidden ? null : bar.querySelector("span").textContent;
const after = act => setTimeout(act, 100);
"""
FRAME = """<body><iframe src="page.html" width="WIDTH" height="900" style="border: 0"></iframe>
<script>addEventListener("message", event => { document.body.dataset.said = event.data; });</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed")
    return found


def told(chromium: str, folder: Path, of: str, script: str, width: int = 1280) -> dict[str, Any]:
    """What a script keeps in `said` after it ran in a page in a frame, as an editor's panel is one; a window is never
    below 500 wide. No other script may fail meanwhile."""
    end = 'setTimeout(() => parent.postMessage(JSON.stringify({ ...said, faults }), "*"), 600);'
    (folder / "page.html").write_text(
        of.replace("</body>", f"<script>{{{HELPERS}{script}{end}}}</script></body>"), "utf-8"
    )
    panel = folder / "panel.html"
    panel.write_text(FRAME.replace("WIDTH", str(width)), "utf-8")
    words = [
        "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--window-size=1400,1000",
        "--virtual-time-budget=3000", "--dump-dom",
    ]  # fmt: skip
    drawn = subprocess.run([chromium, *words, panel.as_uri()], capture_output=True, text=True, check=True).stdout
    (kept,) = re.findall(r'<body[^>]* data-said="([^"]*)"', drawn)
    found: dict[str, Any] = json.loads(unescape(kept))
    assert found.pop("faults") == []
    return found


def lines(found: dict[str, Any], **wanted: str) -> list[str]:
    """The lines of a page's data that have a layer, or are of a kind."""
    (plan,) = found["plans"]
    rows = [
        (found["sources"][file]["lines"][row["lines"][0] - 1].strip(), row)
        for file in plan["text"]
        for row in plan["text"][file]
    ]
    return [text for text, row in rows if all(name in row[key] for key, name in wanted.items())]


@pytest.mark.slow
def test_what_belongs_together_is_marked_both_ways(chromium: str, tmp_path: Path) -> None:
    of = page(LARGE)
    found = told(chromium, tmp_path, of, """
      named(".rows .pick", "blocks[*]").click(); said.layer = marked();
      named("tbody .pick", "attention").click(); said.bar = marked();
      named(".line.told .code", "  logits = model(tokens)").click();
      said.line = all(".rows .marked").map(row => row.textContent);
      said.text = chosenText(); said.panel = document.querySelector(".panel h3").textContent;
      said.ways = all(".chosen button").map(button => button.textContent);
      named("td .pick", "7F4").click(); said.moment = [chosenText(), marked().length];
      dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" })); said.none = [chosenText(), marked()];
    """)  # fmt: skip
    assert found["layer"] == lines(data(of), layers="blocks[*]") and len(found["layer"]) > 5
    assert found["bar"] == lines(data(of), kinds="attention") and "logits = model(tokens)" in found["bar"]
    assert found["line"] == ["blocks[*]"] and found["text"].startswith("Chosen: line 42 of ")
    assert found["panel"].endswith("logits = model(tokens)")
    assert found["ways"] == ["summary", "program", "by layer", "timeline", "memory", "clear"]
    assert found["moment"][0].startswith("Chosen: 7F4. Marked: ") and found["moment"][1] > 5
    assert found["none"] == [None, []]


@pytest.mark.slow
def test_a_span_opens_with_what_is_sent_within_it(chromium: str, tmp_path: Path) -> None:
    found = told(chromium, tmp_path, page(LARGE), """
      const drawn = document.querySelector("canvas");
      const press = key => drawn.dispatchEvent(new KeyboardEvent("keydown", { key }));
      press("n"); press("Enter");
      const table = all(".scroll").find(each => each.textContent.includes("What it consists of"));
      said.rows = all("tbody tr", table).map(row => all("td", row).map(cell => cell.textContent));
      said.chosen = chosenText();
      all("tbody .pick", table)[1].click(); said.layer = chosenText();
    """)  # fmt: skip
    assert found["chosen"].startswith("Chosen: 0F0.") and found["layer"].startswith("Chosen: blocks[*].")
    sent = {row[1]: row[4] for row in found["rows"] if " over " in row[1]}
    assert {"all-gather over tp", "reduce-scatter over tp", "all-gather over cp"} <= sent.keys()
    assert all(size.endswith("B") for size in sent.values())
    assert sum(float(row[3].strip("%")) for row in found["rows"] if row[3][0].isdigit()) == pytest.approx(100, abs=3)


@pytest.mark.slow
def test_it_follows_the_line_of_an_editor(chromium: str, tmp_path: Path) -> None:
    """And nothing else that another window sends it."""
    found = told(chromium, tmp_path, page(THREE_D), """
      const here = () => all(".line.here .at").map(each => each.textContent);
      const odd = ["18", 1e9, -1, 0, 1.5, [18], null].map(line => ({ line }));
      for (const each of [null, 7, "18", {}, ...odd]) postMessage(each, "*");
      after(() => {
        said.odd = [here(), chosenText()];
        postMessage({ line: 18, moved: false }, "*");
        after(() => {
          said.still = [here(), scrollY, chosenText()];
          postMessage({ line: 18 }, "*");
          after(() => {
            const box = document.querySelector(".line.here").getBoundingClientRect();
            said.seen = box.top >= 0 && box.bottom <= innerHeight; said.moved = scrollY > 0;
            postMessage({ line: 22 }, "*");
            after(() => { said.blank = [here(), chosenText()]; });
          });
        });
      });
    """)  # fmt: skip
    assert found["odd"] == [[], None]
    assert found["still"][:2] == [["18"], 0] and found["still"][2].startswith("Chosen: line 18 of ")
    assert found["seen"] and found["moved"] and found["blank"] == [["22"], None]


@pytest.mark.slow
def test_a_kind_has_one_colour(chromium: str, tmp_path: Path) -> None:
    found = told(chromium, tmp_path, page(LARGE), """
      const part = each => each.closest("section").getAttribute("aria-label");
      said.colours = all(".swatch").map(each => [each.parentElement.textContent, each.style.background, part(each)]);
    """)  # fmt: skip
    of: dict[str, set[str]] = {}
    by: dict[str, set[str]] = {}
    for text, colour, part in found["colours"]:
        sent = re.match(r"(?:waiting for the )?(\S+) over ", text)
        name = sent[1] if sent else text
        of.setdefault(name, set()).add(colour)
        by.setdefault(colour, set()).add(f"{part}: {name}" if part == "Memory over time" else name)
    assert all(len(colours) == 1 for colours in of.values()), of
    assert all(len(names) == 1 for names in by.values()), by
    assert {"products", "attention", "all-gather", "reduce-scatter", "send", "activations", "temporaries"} <= of.keys()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_and_all_that_acts_has_a_name_and_a_key(chromium: str, tmp_path: Path, width: int) -> None:
    found = told(chromium, tmp_path, page(THREE_D), """
      const html = each => each.outerHTML, name = each => (each.getAttribute("aria-label") || each.textContent).trim();
      const acts = all("button, summary, canvas, svg[tabindex], [role=region]");
      said.silent = acts.filter(each => !name(each)).map(html);
      said.unreached = acts.filter(each => each.tabIndex < 0).map(html);
      said.wide = [innerWidth, document.documentElement.scrollWidth - document.documentElement.clientWidth];
    """, width)  # fmt: skip
    assert found == {"silent": [], "unreached": [], "wide": [width, 0]}


@pytest.mark.slow
def test_names_of_a_program_stay_text(chromium: str, tmp_path: Path) -> None:
    text = '# </script><img src=x onerror="document.title = 1"> <!-- <script> \u2028\n' + NET
    of = page_of_plans([planned(text, 2, name='"><img src=x onerror=alert(1)></script>.shard')], Sink())
    found = told(chromium, tmp_path, of, """
      const made = all("img, iframe, object, embed, link[rel=stylesheet], body script");
      said.made = made.map(each => each.outerHTML.slice(0, 30));
      said.first = document.querySelector(".line:not(.head) .code").textContent; said.title = document.title;
      all("button, .line.told").forEach(each => each.click());
    """)  # fmt: skip
    assert found["first"] == text.split("\n")[0]
    assert len(found["made"]) == 2 and all(each.startswith("<script>") for each in found["made"])
    assert found["title"].startswith('"><img src=x onerror=alert(1)></script>.shard on 2 ranks')


@pytest.mark.slow
def test_a_tensor_is_drawn_on_its_ranks(chromium: str, tmp_path: Path) -> None:
    """On 8 ranks each of them; on 512 what each axis does."""
    script = (
        "said.said = all('.panel [role=img]').map(each => all('.part, .said', each).map(cell => cell.textContent));"
    )
    found = told(
        chromium, tmp_path, page(THREE_D), f"named('.line.told .code', '    return head(states)').click();{script}"
    )
    assert found["said"] == [["rank 4", "rank 5", "rank 6", "rank 7"]]
    found = told(chromium, tmp_path, page(LARGE), script)
    assert found["said"] == [[
        "1 of 4 run a stage that makes it; neighbours are 128 ranks apart",
        "cuts batch in 8 parts; neighbours are 16 ranks apart",
        "cuts seq in 2 parts; neighbours are 8 ranks apart",
        "cuts vocab in 8 parts; neighbours are next to each other",
    ]]  # fmt: skip
    script = "said.said = document.querySelector('.panel').textContent;"
    found = told(
        chromium,
        tmp_path,
        page(LARGE),
        f"named('.line.told .code', '  loss = cross_entropy(logits, label)').click();{script}",
    )
    assert "each of 8 holds a part of the sum" in found["said"] and "8 copies" in found["said"]
    assert "No axis cuts it, on 128 ranks; 8 of them hold the same; 16 are added for the value." in found["said"]
