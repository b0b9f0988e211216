"""The example of specs/emitted.md is what is emitted."""

from __future__ import annotations

import re

from tests.emit.cases import ROOT
from tests.emit.sources import main_file


def test_the_example_is_emitted_as_it_stands() -> None:
    page = (ROOT / "specs" / "emitted.md").read_text()
    program, start = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("shard", "python"))
    assert program is not None and start is not None
    assert start[1] in main_file(program[1], 8)
