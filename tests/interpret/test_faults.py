"""Faults that simulated ranks have found, each the smallest program that showed it."""

from __future__ import annotations

from building import Builder, planned

from shardlang.graph.graph import Graph
from shardlang.interpret.compare import verify_plan
from shardlang.plan.plan import Plan


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
