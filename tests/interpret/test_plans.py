"""Plans on simulated ranks against one device: graphs of the examples under several strategies and numbers of ranks."""

from __future__ import annotations

import pytest

from shardlang.plan.plan import Plan
from tests.interpret.building import Builder, chain, digits, planned, quickstart
from tests.interpret.verify_plan import verify_plan
from tests.spent import at_most

POSITIONAL = "strategy s {\n  at h: shard ((2, 4), (4, 1))\n}\n"
CHAIN = "strategy s {\n  at y: shard ((4, 1), (1, 1))\n  at z: shard ((1, 1), (1, 4))\n}\n"
DATA = "strategy s {\n  mesh dp = auto\n  split batch over dp\n}\n"
TENSOR = "strategy s {\n  mesh mp = auto\n  split hidden over mp\n}\n"
BOTH = "strategy s {\n  mesh dp = auto, mp = 2\n  split batch over dp\n  split hidden over mp\n}\n"
ZERO = "strategy s {{\n  mesh dp = auto\n  split batch over dp\n  zero {} over dp\n}}\n"


def agrees(graph: object, strategy: str, ranks: int, steps: int = 2) -> None:
    found = planned(graph, strategy, ranks)  # type: ignore[arg-type]
    assert isinstance(found, Plan), found
    report = verify_plan(found, steps=steps)
    assert report.ok, str(report.difference)
    assert report.gradients > 3


def test_quickstart() -> None:
    agrees(quickstart(), POSITIONAL, 8)


def test_dense_chain() -> None:
    agrees(chain(), CHAIN, 4)


# `mp = 2` takes two ranks.
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        (strategy, ranks)
        for strategy in (DATA, BOTH, ZERO.format(1), ZERO.format(2), ZERO.format(3))
        for ranks in (1, 2, 4, 8, 16, 64)
        if (strategy, ranks) != (BOTH, 1)
    ],
)
def test_digits(strategy: str, ranks: int) -> None:
    agrees(digits(), strategy, ranks)


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_digits_tensor_parallel(ranks: int) -> None:
    agrees(digits(), TENSOR, ranks)


def test_512_ranks_take_seconds() -> None:
    with at_most(30):
        agrees(digits(1024), BOTH, 512, steps=1)


def test_a_tied_table_is_cut_for_one_use_and_gathered_for_the_other() -> None:
    """Stored as the head cuts it: its gradient comes back along the gather, so no axis is left to reduce over."""
    b = Builder()
    for name, size in (("batch", 8), ("vocab", 16), ("width", 4)):
        b.dim(name, size)
    ids, table = b.data("ids", "batch", "i64", 16), b.param("table", "vocab width")
    h = b.op("tanh", b.op("embedding", ids, table, path="e"), path="h")
    scores = b.op("einsum", h, table, path="scores", arrow="batch vocab")
    graph = b.graph(b.op("cross_entropy", scores, b.data("label", "batch", "i64", 16), path="train.loss"))
    rules = "  mesh mp = 4\n  at e: [batch@mp, width]\n  at scores: split vocab over mp\n"
    found = planned(graph, "strategy s {\n" + rules + "}\n", 4)
    assert isinstance(found, Plan), found
    assert (found.params[table].stored.dims, found.params[table].reduce_axes) == ((("mp",), ()), ())
    report = verify_plan(found, steps=2)
    assert report.ok, str(report.difference)
