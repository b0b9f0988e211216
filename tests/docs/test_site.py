"""The pages of the site: each has its place, no fence is prose, no link is dead; and what mkdocs builds of them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.__main__ import build, prepare
from docs.order import CODES, ROOT, SECTIONS, navigation, places
from docs.pages import prepared
from shardlang.diagnostics import explain_pages
from tests.mdtest import blocks

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"(?ms)^(`{3,})[^\n]*\n.*?^\1\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    prepare(folder)
    return folder


def test_every_page_is_in_the_order_once() -> None:
    named = [file for files in SECTIONS.values() for file in files]
    there = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("specs/**/*.md")]
    besides = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"]
    assert sorted(named) == sorted([*there, *besides])
    shown = [place for section in navigation() for pages in section.values() for place in pages]
    assert sorted(shown) == sorted([*places().values(), CODES]) and len(set(shown)) == len(shown)
    assert len([place for place in shown if place.startswith("codes/SH")]) == len(explain_pages.pages())


def test_a_fence_has_a_language_and_no_more(site: Path) -> None:
    fences = {
        path.name: found
        for path in site.glob("pages/**/*.md")
        if (found := [line for line in path.read_text("utf-8").splitlines() if re.match(r"\s*```+\S*[ {]", line)])
    }
    # A page tells contributors how to write one, within a block of its own.
    assert fences == {"CONTRIBUTING.md": ["```shard ranks=8"]}
    assert "\n````\n# SH304" in (site / "pages" / "CONTRIBUTING.md").read_text("utf-8")


def test_all_code_stays_as_it_is() -> None:
    for file in places():
        page, text = prepared(file), (ROOT / file).read_text("utf-8")
        assert [program.text for program in page.programs] == [block.text for block in blocks(text)], file
        assert len(re.findall(r"(?m)^```", page.text)) >= len(re.findall(r"(?m)^```", text)), file


def test_no_link_is_dead(site: Path) -> None:
    links = 0
    for path in site.glob("pages/**/*.md"):
        for link in LINK.findall(FENCED.sub("", path.read_text("utf-8"))):
            target = link.partition("#")[0].partition("?")[0]
            assert "://" in link or (path.parent / target).is_file(), f"{path}: {link}"
            links += 1
    assert links > 1000


def test_what_names_a_page_leads_to_it(site: Path) -> None:
    """In code spans too, but not those of the page itself."""
    spans = {
        path.name: found
        for path in site.glob("pages/**/*.md")
        if (found := re.findall(r"(?<!`)`((?:specs/)?[\w-]+\.md)`(?!\])", FENCED.sub("", path.read_text("utf-8"))))
    }
    assert {name: found for name, found in spans.items() if [s for s in found if s.rpartition("/")[2] != name]} == {}
    assert "is in [Layouts](layouts.md)." in (site / "pages" / "strategies.md").read_text("utf-8")
    assert "[`SH328`](codes/SH328.md)" in (site / "pages" / "command.md").read_text("utf-8")
    assert "](../recipes.md" in "".join(path.read_text("utf-8") for path in site.glob("pages/codes/*.md"))


def test_each_program_can_be_opened(site: Path) -> None:
    pages = [path.read_text("utf-8") for path in site.glob("pages/**/*.md")]
    opened = [name for page in pages for name in re.findall(r"page/index\.html\?program=([\w-]+)\)", page)]
    programs = {path.stem: json.loads(path.read_text("utf-8")) for path in site.glob("pages/page/programs/*.js")}
    assert sorted(opened) == sorted(programs) and len(programs) > 300
    first = programs["codes-SH304-1"]
    assert first["ranks"] == 6 and first["text"].startswith("dim batch = 16")
    assert any(program["files"] for program in programs.values())
    assert any(len(program["overrides"]) == 3 for program in programs.values())


def test_mkdocs_builds_it_and_its_search_finds_words(site: Path) -> None:
    """The colours are those of the lexer of the language, which an installed shardlang brings."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: `pip install '.[docs]'`")
    assert build(site) == 0
    index = json.loads((site / "site" / "search" / "search_index.json").read_text("utf-8"))
    texts = {entry["location"]: f"{entry['title']} {entry['text']}" for entry in index["docs"]}
    for word, place in {
        "reduce-scatter": "redistribution.html", "microbatches": "microbatches.html", "recompute": "stages.html",
        "einsum": "reference.html", "SH304": "codes/SH304.html", "safetensors": "weights.html",
        "zero": "strategies.html", "Slurm": "launching.html", "patience": "training.html", "NCCL": "hardware.html",
    }.items():  # fmt: skip
        assert [text for at, text in texts.items() if at.startswith(place) and word in text], word
    page = (site / "site" / "strategies.html").read_text("utf-8")
    assert re.search(r'<span class="k\w*">strategy</span>', page)
    assert "```" not in re.sub(r"(?s)<pre.*?</pre>", "", page)


def test_the_command_writes_and_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "docs", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True).stdout == b""
    assert (tmp_path / "mkdocs.yml").is_file() and (tmp_path / "pages" / "index.md").is_file()
