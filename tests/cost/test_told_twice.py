"""What the proof, the time and the memory of a plan say of the same thing: buckets of gradients, and collectives inside
an operator.
"""

from __future__ import annotations

import pytest

from shardlang import driver
from shardlang.cost.planned import work
from shardlang.cost.work import Collective
from shardlang.diagnostics.diagnostic import Sink
from shardlang.emit.emit import emit
from shardlang.matched.lines import Items, Line
from shardlang.matched.read_back.buckets import buckets
from shardlang.matched.read_back.program import Read
from shardlang.matched.read_back.text import read
from shardlang.matched.table import CONVERSIONS
from shardlang.plan.bytes.peak.reductions import Buckets, sizes_of
from shardlang.plan.plan import Plan
from shardlang.source import Source
from tests.end_to_end.curves import ROOT

DIGITS = (ROOT / "examples" / "digits.shard").read_text()
BUCKETS = DIGITS.replace("  split batch over dp\n", "  split batch over dp\n  bucket gradients LIMIT\n  PLACE\n")


def plan_of(text: str, ranks: int, strategy: str) -> Plan:
    program = driver.check_source(Source("t.shard", text), sink := Sink())
    plan = driver.plan_program(program, strategy, ranks, sink) if program is not None else None
    assert plan is not None, [d.message for d in sink.found]
    return plan


@pytest.mark.parametrize(("place", "precision", "limit"), [
    ("", "f32", "36KB"), ("", "f64", "40KB"), ("", "bf16", "36KB"), ("at up: place on host", "f32", "40KB"),
    ("zero 1 over dp", "f64", "40KB"),
])  # fmt: skip
def test_buckets_of_the_memory_are_those_of_the_proof(place: str, precision: str, limit: str) -> None:
    """Those of the memory are on the device; those of tables on the host are told of by the proof alone."""
    text = (
        BUCKETS.replace("PLACE", place)
        .replace("LIMIT", limit)
        .replace("epochs = 10", f"epochs = 10\n  precision = {precision}")
    )
    plan = plan_of(text, 2, "data_parallel")
    trained = [v for v in plan.params if plan.graph.values[v].gradient]
    found = Buckets(plan, trained, {v: sizes_of(plan, plan.params[v]) for v in trained}).members
    hosted = {plan.graph.values[v].path for v in plan.memory_of}
    proved = [[*each.paths] for each in buckets(Read(read(emit(plan, Sink()))), 0) if hosted.isdisjoint(each.paths)]
    assert len(found) > 1 or hosted
    assert [[plan.graph.values[v].path for v in members] for members in found] == proved


@pytest.mark.parametrize(("chunks", "operator"), [("", "cross_entropy"), ("chunks 4", "chunked_cross_entropy")])
def test_the_time_counts_the_collectives_of_a_loss_over_a_cut_vocabulary(chunks: str, operator: str) -> None:
    """The runtime sends two statistics of three together, once for each chunk, and the proof says so."""
    text = DIGITS.replace("split hidden over mp", f"split classes over mp\n  {chunks}")
    text = "".join(line for line in text.splitlines(keepends=True) if "metric" not in line)
    plan = plan_of(text, 8, "both")
    counted = sum(
        count
        for segment in work(plan).stages[0].forward
        for item, count in segment.items.items()
        if isinstance(item, Collective) and item.place.operator == operator
    )
    assert counted == _statistics(Read(read(emit(plan, Sink()))).functions(0)["forward"]) > 0


def _statistics(items: Items) -> int:
    """Collectives of lines that are no conversions."""
    return sum(each.runs[0] for each in items if isinstance(each, Line) and each.what not in CONVERSIONS)
