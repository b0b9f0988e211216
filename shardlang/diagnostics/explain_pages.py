"""From a diagnostic's code to its title and page: Markdown that is at once test and what
`shardc explain` prints.

Reads the pages' folder only when asked; a code without a page does not exist."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from shardlang.sources.resources import folder

_FILE = re.compile(r"(SH\d{3})-[a-z0-9-]+\.md")


@cache
def pages() -> Mapping[str, Path]:
    """Code -> its page, in the order of codes."""
    found = ((_FILE.fullmatch(path.name), path) for path in sorted(pages_folder().iterdir()))
    return {match[1]: path for match, path in found if match is not None}


def pages_folder() -> Path:
    return folder("diagnostics/pages", "tests/diagnostics")


def page(code: str) -> str:
    """The page's Markdown. KeyError for an unknown code."""
    return pages()[code].read_text("utf-8")


def title(code: str) -> str:
    """The text that the page's first line, `# SH304: a dim does not divide ...`, says after the
    code; "" without one."""
    path = pages().get(code)
    if path is None:
        return ""
    with path.open(encoding="utf-8") as lines:
        return next(lines, "").removeprefix(f"# {code}:").strip()
