"""The parts of specs/tutorial/ are gone through from their text, each in a folder of its own.

What a part says that a command prints is what it prints; `...` stands for anything, as in doctest.
"""

from __future__ import annotations

import doctest
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.cli.process import SHARDC
from tests.documents.bless import SPECS
from tests.mdtest import fences

PARTS = sorted((SPECS / "tutorial").glob("*.md"))
COMMANDS = {"shardc": SHARDC, "python": (sys.executable,), "cat": ("cat",)}
_CAPTURED = {"capture_output": True, "text": True}


def printed(line: str, folder: Path) -> str:
    """What a command prints; what it says of its progress comes last and is left out where it succeeds."""
    name, *words = shlex.split(line)
    start, more = (subprocess.run, _CAPTURED) if name == "cat" else (warm.run, {})
    done = start([*COMMANDS[name], *words], cwd=folder, **more)
    return done.stdout + (done.stderr if done.returncode else "")


def sessions(text: str) -> list[tuple[str, str]]:
    """The commands of a console, each with what it is to print."""
    found = []
    for piece in f"\n{text}".split("\n$ ")[1:]:
        line, _, output = piece.partition("\n")
        found.append((line, output))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_a_part_says_what_happens(part: Path, tmp_path: Path) -> None:
    checker = doctest.OutputChecker()
    for _, language, words, text in fences(part.read_text("utf-8")):
        for name in (word.removeprefix("file=") for word in words if word.startswith("file=")):
            (tmp_path / name).write_text(text, "utf-8")
        for line, expected in sessions(text) if language == "console" else []:
            found = printed(line, tmp_path)
            same = checker.check_output(expected, found, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            assert same, f"$ {line}\n{found}\nand the page has\n{expected}"


def test_there_are_five() -> None:
    assert [part.name[0] for part in PARTS] == ["1", "2", "3", "4", "5"]
    assert shutil.which("cat")
