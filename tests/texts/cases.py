"""The cases of all codes that checking a program does not show: each gives what its user sees, in the order in which
the code's page shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardlang.diagnostics import explain_pages
from tests.mdtest import fences
from tests.texts import compiling, functions, running

CASES = {
    name.upper(): case
    for module in (compiling, functions, running)
    for name, case in vars(module).items()
    if re.fullmatch(r"sh\d{3}", name)
}


def made(code: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """What the cases of a code say, each made in a folder of its own."""
    patch.chdir(folder)
    yield from (text.replace(f"{folder}/", "") for text in CASES[code](folder, patch))


def shown(code: str) -> list[str]:
    """The messages that the page of a code shows as text."""
    blocks = [text for _, language, _, text in fences(explain_pages.page(code)) if language == "text"]
    return [text.removesuffix("\n") for text in blocks if text.startswith(("error[", "warning["))]
