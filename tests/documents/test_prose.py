"""Prose fits 100 columns; pages of specs/ begin with what they are for and an example; sentences of docstrings have a
subject and a verb.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.bless import SPECS

ROOT = SPECS.parent
PAGES = sorted(
    [ROOT / "benchmarks" / "README.md"]
    + [page for pages in ("*.md", "specs/**/*.md", "tests/diagnostics/*.md") for page in ROOT.glob(pages)]
)
SOURCES = sorted(ROOT.glob("shardlang/**/*.py"))
COLUMNS = 100
INVERTED = re.compile(r"(Of|What|By|To be)\b")


def prose(page: str) -> list[tuple[int, str]]:
    """Numbered lines of a page that are neither code nor table."""
    found, code = [], False
    for number, line in enumerate(page.splitlines(), 1):
        code ^= line.startswith("```")
        if not code and not line.startswith(("|", "    ", "```")):
            found.append((number, line))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped(page: Path) -> None:
    lines = prose(page.read_text("utf-8"))
    assert lines and [f"{page.name}:{number}" for number, line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("program", sorted(ROOT.glob("*/*.shard")), ids=lambda program: program.name)
def test_comments_of_programs_are_wrapped(program: Path) -> None:
    comments = [line for line in program.read_text("utf-8").splitlines() if line.lstrip().startswith("#")]
    assert comments and [line for line in comments if len(line) > COLUMNS] == []


@pytest.mark.parametrize("page", sorted(SPECS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_what_it_is_for_and_an_example(page: Path) -> None:
    title, purpose, *rest = page.read_text("utf-8").partition("\n## ")[0].split("\n\n")
    assert title.startswith("# ") and re.match(r"[A-Z`]", purpose) and purpose.rstrip().endswith((".", ":"))
    assert any(part.lstrip().startswith("```") for part in rest)


def docstrings(source: Path) -> Iterator[tuple[ast.stmt, str]]:
    """The docstrings of a module, with the statements that they are."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0], text


def test_sentences_of_docstrings_are_not_inverted() -> None:
    found = [
        f"{source.relative_to(ROOT)}:{at.lineno} {sentence}"
        for source in SOURCES
        for at, text in docstrings(source)
        for sentence in re.split(r"(?<=[.:;?!])\s+|\n\n", text)
        if INVERTED.match(sentence)
    ]
    assert found == []


def test_docstrings_and_comments_are_wrapped() -> None:
    found = []
    for source in SOURCES:
        lines = source.read_text("utf-8").splitlines()
        rows = {number for number, line in enumerate(lines, 1) if line.lstrip().startswith("# ")}
        for at, _ in docstrings(source):
            rows |= {*range(at.lineno, (at.end_lineno or at.lineno) + 1)}
        found += [f"{source.relative_to(ROOT)}:{row}" for row in sorted(rows) if len(lines[row - 1]) > COLUMNS]
    assert found == []
