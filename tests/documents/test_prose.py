"""Prose fits 100 columns, and each page of specs/ begins with what it is for and an example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.bless import SPECS

ROOT = SPECS.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *SPECS.glob("*.md"), *ROOT.glob("tests/diagnostics/*.md")]
)
COLUMNS = 100


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


@pytest.mark.parametrize("page", sorted(SPECS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_what_it_is_for_and_an_example(page: Path) -> None:
    title, purpose, *rest = page.read_text("utf-8").partition("\n## ")[0].split("\n\n")
    assert title.startswith("# ") and re.match(r"[A-Z`]", purpose) and purpose.rstrip().endswith((".", ":"))
    assert any(part.lstrip().startswith("```") for part in rest)
