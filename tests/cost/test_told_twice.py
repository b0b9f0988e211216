"""What the proof and the memory of a plan say of the buckets of gradients, and what its time and real ranks do of
collectives inside an operator.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.cost.planned import work
from shardlang.cost.work import Collective
from shardlang.diagnostics.diagnostic import Sink
from shardlang.emit.emit import emit
from shardlang.folds.peak.reductions import Buckets, sizes_of
from shardlang.matched.read_back.buckets import buckets
from shardlang.matched.read_back.program import Read
from shardlang.matched.read_back.text import read
from tests.emit.sources import planned
from tests.end_to_end.curves import ROOT
from tests.matched.recorded import recorded

RANKS = 4
DIGITS = (ROOT / "examples" / "digits.shard").read_text()
BUCKETS = DIGITS.replace("  split batch over dp\n", "  split batch over dp\n  bucket gradients LIMIT\n  PLACE\n")


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
    plan = planned(text, 2, "data_parallel")
    trained = [v for v in plan.params if plan.graph.values[v].gradient]
    sizes = {v: sizes_of(plan, plan.params[v]) for v in trained}
    found = Buckets(plan, [(v, 0) for v in trained], sizes).members
    hosted = {plan.graph.values[v].path for v in plan.memory_of}
    proved = [[*each.paths] for each in buckets(Read(read(emit(plan, Sink()))), 0) if hosted.isdisjoint(each.paths)]
    assert len(found) > 1 or hosted
    assert [[plan.graph.values[v].path for v, _ in members] for members in found] == proved


@pytest.mark.slow
@pytest.mark.parametrize("chunks", ["", "chunks 4"])
def test_the_time_counts_the_sums_that_real_ranks_make_for_a_loss_over_a_cut_vocabulary(
    chunks: str, tmp_path: Path
) -> None:
    """The runtime sends two statistics of three together, once for each chunk."""
    text = DIGITS.replace("split hidden over mp", f"split classes over mp\n  {chunks}").replace("mp = 4", "mp = 2")
    text = "".join(line for line in text.splitlines(keepends=True) if "metric" not in line)
    plan = planned(text, RANKS, "both")
    passes = work(plan).stages[0]
    counted = sum(
        count * segment.times
        for segment in (*passes.forward, *passes.backward)
        for item, count in segment.items.items()
        if isinstance(item, Collective) and (item.kind, item.axes) == ("all_reduce", ("mp",))
    )
    found = recorded(emit(plan, Sink()), RANKS, tmp_path / "run")
    sums = [one for one in found[0] if one[:3] == ["values", "all_reduce", ["mp"]]]
    assert counted == len(sums) > 0
