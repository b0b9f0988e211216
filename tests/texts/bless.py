"""Writes what the cases say into the pages of their codes: `python -m tests.texts.bless [CODE ...]`. A person reads
the difference. A case that a page does not show yet gets a block at its end."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from shardlang.diagnostics import explain_pages
from tests.mdtest import fences
from tests.texts.cases import CASES, made


def blessed(page: str, texts: list[str]) -> str:
    """A page whose messages are these."""
    lines = page.splitlines()
    found = [
        (line, len(text.splitlines()))
        for line, language, _, text in fences(page)
        if language == "text" and text.startswith(("error[", "warning["))
    ]
    for text in texts[len(found) :]:
        lines += ["", "```text", *text.splitlines(), "```"]
    for (line, count), text in reversed([*zip(found, texts, strict=False)]):
        lines[line : line + count] = text.splitlines()
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    home = os.getcwd()
    for code in sys.argv[1:] or sorted(CASES):
        (path,) = explain_pages.pages_folder().glob(f"{code}-*.md")
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            texts = list(made(code, Path(folder).resolve(), patch))
        os.chdir(home)
        path.write_text(blessed(path.read_text("utf-8"), texts), "utf-8")
