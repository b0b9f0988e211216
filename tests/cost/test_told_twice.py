"""What the memory of a plan says of the buckets of gradients and its time of collectives inside an operator, and what
real ranks do.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from shardlang.cost.planned import work
from shardlang.cost.work import Collective
from shardlang.diagnostics.diagnostic import Sink
from shardlang.emit.emit import emit
from shardlang.folds.peak.reductions import Buckets, sizes_of
from tests.emit.sources import planned
from tests.end_to_end.curves import ROOT
from tests.matched.recorded import recorded

RANKS = 4
DIGITS = (ROOT / "examples" / "digits.shard").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "limit"), [("f64", "40KB"), ("bf16", "36KB")])
def test_buckets_of_the_memory_are_those_of_real_ranks(precision: str, limit: str, tmp_path: Path) -> None:
    """What is used in bf16 is summed in f32."""
    text = DIGITS.replace("  split batch over dp\n", f"  split batch over dp\n  bucket gradients {limit}\n")
    plan = planned(text.replace("epochs = 10", f"epochs = 10\n  precision = {precision}"), 2, "data_parallel")
    sizes = {value: sizes_of(plan, param) for value, param in plan.params.items()}
    found = Buckets(plan, [(value, 0) for value in plan.params], sizes).members
    elements = [sum(math.prod(plan.graph.values[value].type.shape) for value, _ in members) for members in found]
    sent = recorded(emit(plan, Sink()), 2, tmp_path / "run")[0]
    assert len(found) > 1 and [one[1:] for one in sent if one[0] == "gradients"] == [
        ["all_reduce", ["dp"], each] for each in elements
    ]


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
