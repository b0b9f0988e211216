"""`python -m tests.texts [CODE ...]`: replaces all helps, then all places, then all labels, and lists the codes for
which no test fails. A test is a `diagnostics` block of the code's page, or its cases (`cases.py`).

A code whose page shows no such text is listed apart. It ends with 1 where something is not noticed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardlang.diagnostics import explain_pages
from tests.mdtest import blocks, reported, texts
from tests.texts import KIND, KINDS, replace
from tests.texts.cases import CASES, made, shown

# What shows a text of a kind in a message.
SHOWN = {
    "help": re.compile("^help: ", re.M),
    "place": re.compile("^ *--> ", re.M),
    "label": re.compile(r"^ *\d* \|( +\||) *[\^-]+ .*\w|^ *\| +[\w`]", re.M),
}
_PAGE = re.compile(r"\w+\[(SH\d{3})\]: ")


def compared(code: str) -> list[tuple[str, str]]:
    """The messages of a code that its page shows, each with what is said now."""
    page, found = explain_pages.page(code), []
    programs = blocks(page)
    for block in programs:
        if f"[{code}]: " in block.expected:
            now = reported(block, [*programs, *texts(page)]).removesuffix("\n").split("\n\n")
            found += [(due, due if due in now else "") for due in block.expected.removesuffix("\n").split("\n\n")]
    if code in CASES:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            found += [*zip(shown(code), made(code, Path(folder).resolve(), patch), strict=True)]
    return [(due, now) for due, now in found if (match := _PAGE.match(due)) and match[1] == code]


def messages(code: str) -> list[str]:
    """The messages of a code that its page shows."""
    parts = [part for block in blocks(explain_pages.page(code)) for part in block.expected.split("\n\n")]
    return [each for each in [*parts, *shown(code)] if f"[{code}]: " in each.partition("\n")[0]]


def differing(codes: list[str]) -> dict[str, bool]:
    """Whether a test of each code fails now."""
    return {code: any(due != now for due, now in compared(code)) for code in codes}


def noticed(kind: str, codes: list[str]) -> dict[str, bool]:
    """Whether a test of each code fails where texts of a kind are replaced, in a process of its own."""
    command = [sys.executable, "-m", "tests.texts", *codes]
    done = subprocess.run(command, env={**os.environ, KIND: kind}, stdout=subprocess.PIPE, check=True)
    found: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(codes: list[str]) -> int:
    if KIND in os.environ:
        replace()
        print(json.dumps(differing(codes)))
        return 0
    missed = [f"as they are: {code}" for code, differs in noticed("none", codes).items() if differs]
    for kind in KINDS:
        having = [code for code in codes if any(SHOWN[kind].search(each) for each in messages(code))]
        found = noticed(kind, codes)
        print(f"{kind}: {sum(found.values())} of {len(codes)} codes noticed; none on the page: ", end="")
        print(" ".join(code for code in codes if code not in having) or "-", flush=True)
        missed += [f"{kind}: {code}" for code in having if not found[code]]
    print("\n".join(["not noticed:", *missed]) if missed else "all that pages show is held by a test")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(explain_pages.pages())))
