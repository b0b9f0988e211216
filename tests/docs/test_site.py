"""The pages of the site: each has its place, no fence is prose, no link is dead; and what mkdocs builds of them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs.__main__ import build, main, prepare
from docs.order import CODES, ROOT, SECTIONS, TRY, navigation, places
from docs.pages import examples, prepared
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
    assert sorted(shown) == sorted([*places().values(), CODES, TRY]) and len(set(shown)) == len(shown)
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
    programs = {path.stem: _given(path.read_text("utf-8")) for path in site.glob("pages/page/programs/*.js")}
    assert sorted(opened) == sorted(programs) and len(programs) > 300
    first = programs["codes-SH304-1"]
    assert first["ranks"] == 6 and first["text"].startswith("dim batch = 16")
    assert any(program["files"] for program in programs.values())
    assert any(len(program["overrides"]) == 3 for program in programs.values())


def _given(script: str) -> dict:
    """What a script gives to the page."""
    begin, end = "shardProgram(", ");\n"
    assert script.startswith(begin) and script.endswith(end)
    return json.loads(script[len(begin) : -len(end)])


def test_the_examples_can_be_opened(site: Path) -> None:
    listed = (site / "pages" / TRY).read_text("utf-8")
    assert "program=examples-digits): Real handwritten digits, shipped with" in listed
    for program in examples():
        assert f"program={program.name}): " in listed and (site / f"pages/page/programs/{program.name}.js").is_file()


@pytest.fixture(scope="module")
def built(site: Path) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: `pip install '.[docs]'`")
    assert build(site) == 0
    return site / "site"


# A word -> the start of a page that its search finds.
WORDS = {
    "reduce-scatter": "redistribution", "microbatches": "microbatches", "recompute": "stages", "einsum": "reference",
    "SH304": "codes/SH304", "safetensors": "weights", "ZeRO": "strategies", "Slurm": "launching",
    "patience": "training", "NCCL": "hardware",
}  # fmt: skip


def test_its_search_has_words(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text("utf-8"))
    texts = {entry["location"]: f"{entry['title']} {entry['text']}".lower() for entry in index["docs"]}
    for word, place in WORDS.items():
        assert [text for at, text in texts.items() if at.startswith(place) and word.lower() in text], word


def test_no_fence_is_prose_and_blocks_have_colours(built: Path) -> None:
    """The colours are those of the lexer of the language, which an installed shardlang brings."""
    blocks = 0
    for path in built.glob("**/*.html"):
        page = path.read_text("utf-8")
        blocks += page.count("<pre")
        assert "```" not in re.sub(r"(?s)<(pre|code).*?</\1>", "", page), path
    assert blocks > 1000
    assert re.search(r'<span class="k\w*">strategy</span>', (built / "strategies.html").read_text("utf-8"))


class _Anchors(HTMLParser):
    """The ids of a page, and what it leads to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids, self.links = set[str](), set[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value for name, value in attrs if value}
        self.ids |= {of[name] for name in ("id", "name") if name in of}
        self.links |= {of[name] for name in ("href", "src") if name in of}


def test_no_built_link_is_dead(built: Path) -> None:
    """Of pages, anchors, styles and scripts; what the page of programs has beside it is built where there is node."""
    pages = {path.resolve(): _Anchors(path.read_text("utf-8")) for path in built.glob("**/*.html")}
    checked = 0
    for path, page in pages.items():
        for link in page.links:
            to = urlsplit(link)
            if to.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), (path.name, link)
            assert not to.fragment or target not in pages or unquote(to.fragment) in pages[target].ids, (
                path.name,
                link,
            )
            checked += 1
    assert checked > 20_000


def test_the_command_writes_and_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "docs", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True).stdout == b""
    assert (tmp_path / "mkdocs.yml").is_file() and (tmp_path / "pages" / "index.md").is_file()


def test_without_node_the_rest_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["docs", str(tmp_path), "--page"])
    assert main() == 1
    assert (
        capsys.readouterr().err
        == "The editor in the browser is not built: there is no node. It needs node 18 and npm.\n"
    )
    assert "is no part of this build" in (tmp_path / "pages" / "page" / "index.html").read_text("utf-8")
