"""A point -> about how long its step takes, in closed form: only the order in which points are
looked at follows from it, and nothing that is told."""

from __future__ import annotations

import math

from shardlang.cost.hardware import Hardware
from shardlang.graph.graph import Kind
from shardlang.plan.work import step_flops
from shardlang.search.cut import arrays
from shardlang.search.space import BUCKETS, Open, Point, stage_count
from shardlang.syntax import ast

# Bytes of a parameter with its gradient and two moments in f32; what a layer keeps for backward of
# each byte that it hands on.
EACH, KEPT = 18, 16


class Guess:
    """A guess at the points of one program."""

    def __init__(self, of: Open, hardware: Hardware, limit: int | None) -> None:
        self.of, self.hardware, self.limit = of, hardware, limit or math.inf
        graph = of.program.graph
        self.flops = step_flops(graph)
        self.params = sum(v.type.elements for v in graph.values if v.kind is Kind.PARAM)
        found = arrays(graph)
        self.layers = sum(len(array.paths) for array in found) or 1
        self.handed = 4 * max((_handed(of, array.ops) for array in found), default=0)
        splits = [rule for rule in of.strategy.rules if isinstance(rule, ast.Split)]
        batch = [r for r in splits if any(graph.batch in graph.dims.get(dim.text, ()) for dim in r.dims)]
        self.batch_axes = {use.name.text for rule in batch for use in rule.axes}

    def __call__(self, point: Point) -> float:
        hardware, degrees, ranks = self.hardware, dict(point.sizes), self.of.ranks
        stages, count = stage_count(self.of, degrees), point.microbatches or 1
        data = math.prod(n for axis, n in point.sizes if axis in self.batch_axes)
        inner = max(1, ranks // (stages * data))
        compute = self.flops / (ranks * 0.55 * (hardware.compute or 1e12))
        near, far = hardware.link or 1e11, hardware.network or hardware.link or 1e10
        rate = near if inner <= max(1, hardware.devices) else far
        mine = self.params / (inner * stages)
        level, keep = point.zero[0] if point.zero else (0, False)
        sums = 4 * mine * 2 * (data - 1) / data / far / 2
        gathers = 2 * 2 * mine * (1 if keep else count) / far / 2 if level == 3 and data > 1 else 0.0
        inline = 8 * self.handed / data * (inner - 1) / inner * self.layers / stages / rate
        shared = EACH * mine / (data if level == 3 else 1) if level in (0, 3) else mine * (6 + 12 / data)
        kept = KEPT * self.handed * self.layers / (data * count * inner * stages) * min(count, stages)
        again = 1.33 if shared + kept > self.limit else 1.0
        bubble = (stages - 1) / (count * max(1, point.virtual))
        time = compute * again * (1 + bubble) + inline + sums + gathers
        least = shared + kept / KEPT
        rare = 1 + 0.05 * BUCKETS.index(point.bucket) if point.bucket else 1.0
        rare += 0.02 * sum(may for _, _, uses in point.splits for _, may in uses)
        return time * rare * (1 if least <= self.limit else 1e3 * least / self.limit)


def _handed(of: Open, ops: tuple[tuple[int, ...], ...]) -> int:
    """Elements of what a layer hands to the next."""
    graph = of.program.graph
    read = {v for op in ops[1] for v in graph.ops[op].operands}
    return sum(graph.values[v].type.elements for op in ops[0] for v in graph.ops[op].results if v in read)
