"""Rows of a table over the axes that split the batch: exchanged or looked up masked, whichever sends less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.report import report
from shardlang.plan.plan import Plan
from tests.emit.sources import tried

PROGRAM = (Path(__file__).parents[1] / "emit" / "programs" / "clicks.shard").read_text()
RULES = "  mesh dp = auto\n  split batch, vocab over dp\n  at table: place on host\n"
TWO = "  mesh dp = 2, cp = 2\n"


def planned(rules: str, ranks: int = 4, settings: dict[str, str] | None = None) -> tuple[Plan | None, Sink]:
    return tried(PROGRAM.replace(RULES, rules), ranks, settings=settings)


def lookup(rules: str, ranks: int = 4, settings: dict[str, str] | None = None) -> dict[str, Any]:
    """What the plan shows of the lookup."""
    plan, sink = planned(rules, ranks, settings)
    assert plan is not None, sink.found
    return next(o for o in report(plan)["operators"] if o["operator"] == "embedding")


def sent(found: dict[str, Any]) -> list[tuple[str, str, str, int, int]]:
    return [(c["phase"], c["kind"], c["value"], c["forward_bytes"], c["backward_bytes"]) for c in found["collectives"]]


def test_rows_are_exchanged_where_that_sends_less() -> None:
    found = lookup(RULES)
    ids, rows = 8 * 4 * 8, 8 * 4 * 8 * 4  # of a rank: 8 examples of 4 fields, rows of 8
    assert sent(found) == [
        ("inside", "all_to_all", "ids", ids * 3 // 4 + 3 * 8, 0),
        ("inside", "all_to_all", "rows", rows * 3 // 4, rows * 3 // 4),
    ]
    assert found["layout"] == "[batch@dp, fields, width]"
    assert [o["layout"] for o in found["local_shapes"]["operands"]] == ["[batch@dp, fields]", "[vocab@dp, width]"]


def test_they_are_looked_up_masked_where_ids_are_larger_than_rows() -> None:
    found = lookup(RULES.replace("  at table: place on host\n", ""), 2, {"model.width": "1"})
    assert [(phase, kind) for phase, kind, *_ in sent(found)] == [("after", "reduce_scatter")]
    wider = lookup(RULES.replace("  at table: place on host\n", ""), 2, {"model.width": "2"})
    assert [(phase, kind) for phase, kind, *_ in sent(wider)] == [("inside", "all_to_all")] * 2


def test_a_more_specific_rule_keeps_the_axis() -> None:
    found = lookup("  mesh dp = auto\n  split batch over dp\n  at rows: split vocab over dp\n")
    assert [(phase, kind) for phase, kind, *_ in sent(found)] == [("after", "reduce_scatter")]


@pytest.mark.parametrize(
    ("rules", "axes"),
    [
        ("  mesh dp = auto\n  split batch over dp\n  split vocab over dp uneven\n", ["dp"]),
        ("  mesh dp = auto\n  split batch over dp\n  split vocab over dp sizes (10, 0, 90, 300)\n", ["dp"]),
        ("  mesh dp = auto\n  split batch, vocab over dp\n  microbatches 2\n", ["dp"]),
        (TWO + "  split batch, vocab over (cp, dp)\n", ["cp", "dp"]),
        (TWO + "  split batch over (dp, cp)\n  split vocab over dp\n", ["dp"]),
        (TWO + "  split batch over dp\n  split fields over cp\n  split vocab over dp\n", ["dp"]),
    ],
)
def test_other_splits(rules: str, axes: list[str]) -> None:
    found = lookup(rules)
    inside = [c["axes"] for c in found["collectives"] if c["phase"] == "inside"]
    assert inside == [axes, axes]


@pytest.mark.parametrize(
    "rules",
    [
        TWO + "  split batch over dp\n  split vocab over (dp, cp)\n",  # some of the rows' axes only
        "  mesh dp = auto\n  split batch, width over dp\n",
        "  mesh dp = auto\n  split vocab, width over dp\n",
    ],
)
def test_what_is_still_a_mistake(rules: str) -> None:
    found, sink = planned(rules)
    assert found is None
    assert {d.code for d in sink.found} == {"SH310"}


def test_a_rank_may_be_asked_for_what_all_look_up() -> None:
    plan, _ = planned(RULES)
    assert plan is not None
    table = min(400 // 4, 4 * 8 * 4) * (8 * 4 + 8)  # an id and a row of 8 for each
    assert report(plan)["per_rank"]["gradients_bytes"] == table + 8 * 4
