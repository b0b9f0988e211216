"""Text of a program -> its plan, without files (imports from std alone)."""

from __future__ import annotations

from shardlang.check.check import check
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from shardlang.plan.planner import plan
from shardlang.resources import folder
from shardlang.source import Source
from shardlang.syntax.parse import parse


def load(importing: str, path: str, is_file: bool) -> Source | None:
    """A module of the library."""
    file = folder("stdlib") / f"{path.removeprefix('std.')}.shard"
    return None if is_file or not file.exists() else Source(path, file.read_text())


def planned(text: str, ranks: int, strategy: str | None = None, name: str = "example.shard") -> Plan:
    """The plan of a program that has no mistake."""
    sink = Sink()
    program = check(parse(Source(name, text), sink), sink, load)
    assert program is not None and not sink.failed, [d.message for d in sink.found]
    result = plan(program, strategy, ranks, sink)
    assert result is not None and not sink.failed, [d.message for d in sink.found]
    return result
