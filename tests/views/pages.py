"""The commands that pages of specs/ show, and what they print. `python -m tests.views.pages` writes it anew."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

from shardlang.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "specs" / name for name in ("diff.md", "why.md")]
_FENCE = re.compile(r"```console\n\$ (shardc [^\n]*)\n(.*?)```\n", re.DOTALL)


def shown(line: str) -> str:
    """What a command prints, in the folder of the repository."""
    out, words = io.StringIO(), shlex.split(line)
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        assert words[0] == "shardc"
        run(words[1:])
    return out.getvalue()


def commands(page: Path) -> list[tuple[str, str]]:
    """The commands of a page, each with what the page says that it prints."""
    return [(fence[1], fence[2]) for fence in _FENCE.finditer(page.read_text("utf-8"))]


def bless(page: Path) -> None:
    """Writes what the commands print into their page."""
    text = page.read_text("utf-8")
    page.write_text(_FENCE.sub(lambda fence: f"```console\n$ {fence[1]}\n{shown(fence[1])}```\n", text), "utf-8")


if __name__ == "__main__":
    for each in PAGES:
        bless(each)
