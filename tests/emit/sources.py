"""Text of a program -> the program, its plan and its emitted files, by the road that `shardc compile` takes."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source


def checked(
    text: str, name: str = "example.shard", settings: Mapping[str, str] | None = None, strategy: str | None = None
) -> CheckedProgram:
    """A program that has no mistake. settings: as of `--set`."""
    program = driver.check_source(Source(name, text), sink := Sink(), settings, strategy)
    assert program is not None, [d.message for d in sink.found]
    return program


def tried(
    text: str, ranks: int | None, strategy: str | None = None, name: str = "example.shard",
    settings: Mapping[str, str] | None = None,
) -> tuple[Plan | None, Sink]:  # fmt: skip
    """The plan of a program that has no mistake, if its strategy has none, and what is reported of that."""
    program, sink = checked(text, name, settings, strategy), Sink()
    return driver.plan_program(program, strategy, ranks, sink), sink


def planned(
    text: str, ranks: int, strategy: str | None = None, name: str = "example.shard",
    settings: Mapping[str, str] | None = None,
) -> Plan:  # fmt: skip
    """The plan of a program whose strategy has no mistake either."""
    plan, sink = tried(text, ranks, strategy, name, settings)
    assert plan is not None, [d.message for d in sink.found]
    return plan


def emitted_files(
    text: str, ranks: int, strategy: str | None = None, name: str = "example.shard",
    settings: Mapping[str, str] | None = None,
) -> Mapping[str, str]:  # fmt: skip
    """The emitted files by name."""
    sink = Sink()
    files = driver.emit_plan(planned(text, ranks, strategy, name, settings), sink)
    assert files is not None, [d.message for d in sink.found]
    return files


def written(
    folder: Path, text: str, ranks: int, strategy: str | None = None, name: str = "example.shard",
    settings: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """The main.py of the emitted files, which are written to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in emitted_files(text, ranks, strategy, name, settings).items():
        (folder / file).write_text(content)
    return folder / "main.py"


def main_file(text: str, ranks: int, strategy: str | None = None, name: str = "example.shard") -> str:
    """The emitted main.py."""
    return emitted_files(text, ranks, strategy, name)["main.py"]


def parsed(text: str) -> ast.Module:
    """The text as Python; a failed test where it is none."""
    with contextlib.suppress(SyntaxError):
        module = ast.parse(text.encode())
        compile(module, "parsed", "exec")
        return module
    pytest.fail(f"no Python: {text!r}")
