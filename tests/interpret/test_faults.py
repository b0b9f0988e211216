"""Faults that simulated ranks have found, each the smallest program that showed it."""

from __future__ import annotations

import torch

from shardlang.graph.graph import Graph
from shardlang.interpret.meaning.undecided import undecided
from shardlang.interpret.verify.one_device import following
from shardlang.plan.plan import Plan
from tests.interpret.building import Builder, planned
from tests.interpret.verify_plan import verify_plan


def agrees(graph: Graph, rules: str, ranks: int) -> Plan:
    found = planned(graph, "strategy s {\n  " + rules + "\n}\n", ranks)
    assert isinstance(found, Plan), found
    report = verify_plan(found)
    assert report.ok, str(report.difference)
    return found


def test_an_uneven_dim_within_a_product_stays_whole() -> None:
    """seq = 4 over 3 ranks is 2 + 2 + 0, times width 4, 4, 0; torch.chunk's sizes of seq * width are 3, 3, 2."""
    b = Builder()
    for name, size in (("batch", 4), ("seq", 4), ("width", 2)):
        b.dim(name, size)
    x, w = b.data("x", "batch seq width"), b.param("w", "width")
    y = b.op("mul", x, w, path="y")
    merged = b.op("rearrange", y, path="merged", arrow="batch seq*width")
    loss = b.op("mean", b.op("square", merged, path="z"), path="train.loss")
    agrees(b.graph(loss), "mesh b = 3\n  split seq over b uneven", 3)


def test_what_rounding_decides_is_no_difference() -> None:
    """An argmax or a comparison of equal sums, which ranks add in another order."""
    b = Builder()
    for name, size in (("batch", 4), ("more", 4)):
        b.dim(name, size)
    x = b.data("x", "batch more")
    best, over = b.op("argmax", x, path="best", over="more"), b.op("gt", x, b.number(0.5), path="over")
    graph = b.graph(best)
    inf = float("inf")
    rows = [[1.0, 1.0 + 1e-15, 0.0, 0.0], [1.0, 1.1, 0.0, 0.0], [0.5, 0.5, 0.5 - 1e-14, 0.4], [0.1, 0.2, -inf, -inf]]
    values = {x: torch.tensor(rows, dtype=torch.float64), 2: torch.tensor(0.5, dtype=torch.float64)}
    first, second = (undecided(op, values, 1e-9) for op in graph.ops)
    assert first is not None and first.tolist() == [True, False, True, False]
    assert second is not None and second.sum() == 3
    # Nothing but rounding, by the scale at which values are held to each other.
    values = {x: 1e-17 * torch.tensor([[3.0, 1.0, 0.0, 2.0]], dtype=torch.float64), 2: torch.zeros(())}
    for op in graph.ops:
        found = undecided(op, values, 1e-9)
        assert found is not None and found.all()
    assert following(graph, x) == {x, best, over}
    label = b.data("label", "batch more")
    b.op("auc", x, label, path="area")
    area = b.graph(best).ops[-1]
    for scores, tied in ((rows, True), ([[1.0, 2.0, 3.0, 4.0]], False)):
        found = undecided(area, {x: torch.tensor(scores, dtype=torch.float64), label: torch.zeros(1)}, 1e-9)
        assert found is not None and bool(found) is tied
