"""The built site in chromium, from the disk and without a network: what its search finds, and the editor that programs
open in. `python -m tests.docs` runs it; where chromium, node, npm or mkdocs-material are missing it skips."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from docs.__main__ import build, prepare
from docs.order import ROOT
from docs.page.build import build as build_page
from docs.page.packages import NoPackages, installed, program
from shardlang.editor.open_file import OpenFile
from shardlang.editor.planned import shown
from tests.docs.test_site import WORDS

PUPPETEER = '{"private": true, "dependencies": {"puppeteer-core": "25.16.0"}}'
TRANSFORMER = ROOT / "examples" / "transformer.shard"


class Seen(NamedTuple):
    """found: what each step found. said: errors and warnings of the pages. asked: addresses of a network."""

    found: list[Any]
    said: list[str]
    asked: list[str]


def led(*steps: list[Any]) -> Seen:
    """Leads chromium through pages; page.js has the steps."""
    try:
        words = [program("node"), str(Path(__file__).with_name("page.js")), str(installed(PUPPETEER))]
        command = [*words, program("chromium"), json.dumps(steps)]
    except NoPackages as reason:
        pytest.skip(str(reason))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = Seen(**json.loads(done.stdout.splitlines()[-1]))
    assert seen.asked == []
    return seen


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: `pip install '.[docs]'`")
    folder = tmp_path_factory.mktemp("site")
    prepare(folder)
    try:
        build_page(folder / "pages" / "page")
    except NoPackages as reason:
        pytest.skip(str(reason))
    assert build(folder) == 0
    return folder / "site"


def address(site: Path, program: str = "examples-transformer") -> str:
    return f"{(site / 'page' / 'index.html').as_uri()}?program={program}"


def planned(strategy: str) -> OpenFile:
    """The plan of the example as an editor has it."""
    file = OpenFile("program.shard", TRANSFORMER.read_text("utf-8"), strategy)
    file.check()
    assert file.program is not None and file.checked is not None
    for part in shown(file.program, file.checked.tree, strategy, None):
        file.take(part)
    return file


def with_hints(file: OpenFile) -> list[str]:
    text = file.text
    for hint in reversed(file.hints):
        text = text[: hint.at] + hint.text + text[hint.at :]
    return text.split("\n")


def test_the_hints_of_transformer(site: Path) -> None:
    seen = led(
        ["open", address(site)], ["lines"], ["text", "#state"], ["choose", "three_d"], ["lines"], ["text", "#state"]
    )
    _, first, first_state, _, lines, state = seen.found
    for name, shown_lines, said in (("data_parallel", first, first_state), ("three_d", lines, state)):
        file = planned(name)
        assert len(file.hints) >= 3 and shown_lines == with_hints(file)
        assert said == f"{name}: {next(lens.text for lens in file.lenses if lens.strategy == name)}"
    assert seen.said == []


def test_keys_give_mistakes_and_hints_stay(site: Path) -> None:
    seen = led(
        ["open", address(site)], ["cursor", "layer head"], ["keys", " x"], ["waitFor", ".squiggly-error"],
        ["waitFor", "#mistakes p"], ["lines"], ["text", "#state"], ["press", "Backspace"], ["key", " "], ["quiet"],
        ["text", "#state"], ["text", "#mistakes"],
    )  # fmt: skip
    mistake, lines, state, after, none = (seen.found[at] for at in (4, 5, 6, 10, 11))
    assert mistake.startswith("SH119line 14: two things on one line: `x` begins another") and state == "1 mistake"
    assert [line for line in lines if line.endswith("229 kB over dp")]
    assert after.startswith("data_parallel: 8 ranks") and none == "" and seen.said == []


def test_what_is_pointed_at_and_offered_by_keys_alone(site: Path) -> None:
    seen = led(
        ["open", address(site)], ["choose", "three_d"], ["cursor", "memory = src"], ["press", "Home"],
        ["press", "Control", "k"], ["press", "Control", "i"], ["waitFor", ".monaco-hover-content"], ["press", "Escape"],
        ["cursor", "layer head"], ["press", "Enter"], ["keys", "layer x = Lin"], ["press", "Control", "Space"],
        ["waitFor", ".suggest-widget.visible .monaco-list-row"],
    )  # fmt: skip
    assert "all-gather over mp" in seen.found[6] and seen.found[12].startswith("Linear")


def test_a_link_holds_the_program(site: Path) -> None:
    seen = led(
        ["open", address(site, "codes-SH304-1")], ["cursor", "dim batch"], ["keys", "  # 𝕏 mine"], ["quiet"], ["lines"],
        ["text", "#mistakes"], ["link"],
    )  # fmt: skip
    lines, mistakes, link = seen.found[4:]
    assert any("# 𝕏 mine" in line for line in lines) and "SH304" in mistakes
    again = led(["visit", link], ["waitFor", "#mistakes p"], ["lines"], ["text", "#mistakes"])
    assert again.found[2:] == [lines, mistakes]
    cut = led(["visit", link[:-40]], ["waitFor", "#state.bad"])
    assert cut.found[1] == "The address holds no program; it may have been cut."


def test_a_compiler_that_cannot_start_says_so(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "page"
    shutil.copytree(site / "page", broken)
    script = (broken / "compiler.js").read_text("utf-8")
    (broken / "compiler.js").write_text(script.replace('"wasm":"', '"wasm":"AAAA', 1), "utf-8")
    seen = led(["visit", (broken / "index.html").as_uri()], ["waitFor", "#state.bad"])
    assert seen.found[1].startswith("A fault of this page, not of your program: ") and seen.said
    (broken / "compiler.js").unlink()
    seen = led(["visit", (broken / "index.html").as_uri()], ["pause", 1000], ["text", "#state"])
    assert "is no part of this build of the site" in seen.found[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(site: Path, scheme: str) -> None:
    pages = [address(site), (site / "index.html").as_uri(), (site / "strategies.html").as_uri()]
    seen = led(*(step for page in pages for step in (["visit", page, 400, 800, scheme], ["wide"])))
    assert seen.found[1::2] == [0, 0, 0]


def test_its_search_finds_words(site: Path) -> None:
    seen = led(["visit", (site / "index.html").as_uri()], *(["search", word] for word in WORDS))
    for (word, page), links in zip(WORDS.items(), seen.found[1:], strict=True):
        assert any(f"/{page}" in link for link in links), (word, links)
