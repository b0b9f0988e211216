"""The pages of the site: each has its place, no fence is prose, no link is dead; and what mkdocs builds of them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from html import unescape
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
    besides = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "editors/README.md"]
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
        unnamed = re.findall(r"(?ms)^```\n(use .*?)^```", text)  # the first program that a reader sees
        assert len(unnamed) == (file == "README.md")
        assert [program.text for program in page.programs] == [*unnamed, *(each.text for each in blocks(text))], file
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


def test_what_mkdocs_builds(site: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: `pip install '.[docs]'`")
    assert build(site) == 0
    built = site / "site"
    pages = {str(path): path.read_text("utf-8") for path in built.glob("**/*.html")}
    _search_has_words(built)
    _no_fence_is_prose(pages)
    _no_link_is_dead(built, pages)


# A word -> the start of a page that its search finds.
WORDS = {
    "reduce-scatter": "redistribution", "microbatches": "microbatches", "recompute": "stages", "einsum": "reference",
    "SH304": "codes/SH304", "safetensors": "weights", "ZeRO": "tutorial/3_transformer", "Slurm": "launching",
    "patience": "training", "NCCL": "hardware",
}  # fmt: skip


def _search_has_words(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text("utf-8"))
    texts = {entry["location"]: f"{entry['title']} {entry['text']}".lower() for entry in index["docs"]}
    for word, place in WORDS.items():
        assert [text for at, text in texts.items() if at.startswith(place) and word.lower() in text], word


def _no_fence_is_prose(pages: Mapping[str, str]) -> None:
    """And blocks have the colours of the lexer of the language, which an installed shardlang brings."""
    for path, page in pages.items():
        assert "```" not in re.sub(r"(?s)<(pre|code).*?</\1>", "", page), path
    assert sum(page.count("<pre") for page in pages.values()) > 1000
    assert any(re.search(r'<span class="k\w*">strategy</span>', page) for page in pages.values())


def _no_link_is_dead(built: Path, pages: Mapping[str, str]) -> None:
    """Of pages, anchors, styles and scripts; those of the editor are built where there is node."""
    editor = {str(built / "page" / name) for name in ("page.css", "page.js", "compiler.js")}
    files = {str(path) for path in built.rglob("*") if path.is_file()} | editor
    ids = {path: set(re.findall(r'\s(?:id|name)="([^"]+)"', page)) for path, page in pages.items()}
    checked = 0
    for path, page in pages.items():
        if path.endswith("404.html"):  # that of a server: its links begin at the server's root
            continue
        for link in set(re.findall(r'\s(?:href|src)="([^"]+)"', page)):
            to = urlsplit(unescape(link))
            if to.scheme in ("http", "https", "mailto", "data"):
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), unquote(to.path))) if to.path else path
            target = target if target in files else os.path.join(target, "index.html")
            assert target in files, (path, link)
            assert not to.fragment or target not in ids or unquote(to.fragment) in ids[target], (path, link)
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
