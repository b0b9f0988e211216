"""An emitted program imports its own files, whatever modules the caller has that are named so."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from shardlang.runtime.launch.launcher import read_program
from tests.emit.sources import emitted_files
from tests.end_to_end.curves import ROOT


def test_modules_of_the_caller_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "tests/emit/programs/staged.shard").read_text("utf-8")
    files = emitted_files(text, 8, "recomputed")
    assert {"mesh.py", "stage0.py", "stage1.py", "layers.py"} < files.keys()
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    theirs = {name: ModuleType(name) for name in ("mesh", "layers", "stage0")}
    for name, module in theirs.items():
        monkeypatch.setitem(sys.modules, name, module)
    program = read_program(tmp_path / "main.py")
    assert len(program.stages) == 2
    assert {name: sys.modules[name] for name in theirs} == theirs
    assert read_program(tmp_path / "main.py").stages[0].forward is not program.stages[0].forward
