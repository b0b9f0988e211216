"""The models of this folder, with overrides, as programs and plans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from tests.emit import sources

HERE = Path(__file__).resolve().parent


def program_of(text: str, overrides: Mapping[str, str] | None = None) -> CheckedProgram:
    """A checked program; fails with what was reported."""
    return sources.checked(text, name=str(HERE / "test.shard"), settings=overrides or {})


def plan_of(name: str, strategy: str | None, ranks: int, overrides: Mapping[str, str] | None = None) -> Plan:
    """The plan of `NAME.shard` in this folder."""
    return plan_text((HERE / f"{name}.shard").read_text(), strategy, ranks, overrides)


def plan_text(text: str, strategy: str | None, ranks: int, overrides: Mapping[str, str] | None = None) -> Plan:
    """The plan of a program; fails with what was reported."""
    sink = Sink()
    plan = driver.plan_program(program_of(text, overrides), strategy, ranks, sink)
    assert plan is not None, [d.message for d in sink.found]
    return plan
