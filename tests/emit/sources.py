"""Text of a program -> its plan and its emitted main.py, by the road that `shardc compile` takes."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Mapping

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source


def planned(
    text: str, ranks: int, strategy: str | None = None, name: str = "example.shard",
    settings: Mapping[str, str] | None = None,
) -> Plan:  # fmt: skip
    """The plan of a program that has no mistake. settings: as of `--set`."""
    sink = Sink()
    program = driver.check_source(Source(name, text), sink, settings)
    assert program is not None, [d.message for d in sink.found]
    plan = driver.plan_program(program, strategy, ranks, sink)
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
