"""A point -> about how long its step takes, in closed form: only the order in which points are
looked at follows from it, and nothing that is told."""

from __future__ import annotations

import math
from dataclasses import field

from shardlang.cost.collectives import placed, seconds
from shardlang.cost.hardware import Hardware
from shardlang.graph.graph import Kind
from shardlang.plan.work import step_flops
from shardlang.records import dataclass
from shardlang.search.cut import arrays
from shardlang.search.space import BUCKETS, Open, Point, stage_count
from shardlang.syntax import ast

# Of a device's peak; what a layer keeps for backward of each byte that it hands on in f32, the part
# of that which is left where all but products is computed again, and what this takes of a step.
PEAK, KEPT, LEFT, AGAIN = 0.42, 16, 0.5, 0.04
# All of a forward of three such parts: computed again where that is not enough.
FORWARD = 1 / 3
# Bytes of a parameter on each rank, and those that the ranks of the batch share: of f32 and bf16,
# its gradient and two moments, by the level of ZeRO.
HELD = {(0, False): (18, 0), (1, False): (6, 12), (2, False): (2, 16), (3, False): (0, 18), (3, True): (2, 16)}
# Bytes of a large collective by which rates are found.
LARGE = 1e9


@dataclass(frozen=True, slots=True)
class Grid:
    """The sizes of axes, taken together: of the stages, those that share the batch, all others.
    outer, inner: seconds in which a rank sends a byte along those of the batch, and the others."""

    stages: int
    data: int
    others: int
    outer: float
    inner: float


@dataclass
class Guess:
    """A guess at the points of one program."""

    of: Open
    hardware: Hardware
    limit: float
    _grids: dict[tuple[tuple[str, int], ...], Grid] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.of.program.graph
        self.compute = step_flops(graph) / (self.of.ranks * PEAK * (self.hardware.compute or 1e12))
        self.params = sum(v.type.elements for v in graph.values if v.kind is Kind.PARAM)
        self.largest = 4 * max((v.type.elements for v in graph.values if v.gradient), default=0)
        found = arrays(graph)
        self.layers = sum(len(array.paths) for array in found) or 1
        self.handed = 4 * max((_handed(self.of, array.ops) for array in found), default=0)
        splits = [rule for rule in self.of.strategy.rules if isinstance(rule, ast.Split)]
        batch = [r for r in splits if any(graph.batch in graph.dims.get(dim.text, ()) for dim in r.dims)]
        self.batch_axes = {use.name.text for rule in batch for use in rule.axes}

    def __call__(self, point: Point) -> float:
        grid, count = self._grid(point.sizes), point.microbatches or 1
        stages, virtual = grid.stages, max(1, point.virtual)
        own, shared = HELD[point.zero[0] if point.zero else (0, False)]
        mine = self.params / (grid.others * stages)
        sizes = mine * (own + shared / grid.data)
        each = self.handed * self.layers / (grid.data * count * grid.others * stages)
        alive = min(count, stages * (1 + (virtual > 1) * (1 - 1 / stages)))
        kept = KEPT * each * alive + 2 * self.largest / (grid.data * count * grid.others)
        inline = 4 * self.handed / grid.data * (grid.others - 1) / grid.others * self.layers / stages * grid.inner
        compute = self.compute * self._again(sizes + kept - self.limit, kept)
        bubble = (stages - 1) / (count * virtual)
        time = (compute + inline) * (1 + bubble) + self._exposed(point, grid, mine, compute, count)
        rare = 1 + 0.05 * BUCKETS.index(point.bucket) if point.bucket and not self.of.large else 1.0
        rare += 0.02 * sum(may for _, _, uses in point.splits for _, may in uses)
        least = sizes + kept / KEPT
        return time * rare * (1 if least <= self.limit else 1e3 * least / self.limit)

    def _grid(self, sizes: tuple[tuple[str, int], ...]) -> Grid:
        if sizes not in self._grids:
            stages = stage_count(self.of, dict(sizes))
            staged = self.of.stages.axis.text if self.of.stages is not None else ""
            batch = tuple(at for at, (axis, _) in enumerate(sizes) if axis in self.batch_axes)
            others = tuple(at for at, (axis, _) in enumerate(sizes) if axis != staged and axis not in self.batch_axes)
            data, inner = (math.prod(sizes[at][1] for at in axes) for axes in (batch, others))
            all_sizes = tuple(size for _, size in sizes)
            outer_rate, inner_rate = (
                seconds(self.hardware, "all_gather", placed(self.hardware, all_sizes, axes), LARGE) / LARGE
                for axes in (batch, others)
            )
            self._grids[sizes] = Grid(stages, data, inner, outer_rate, inner_rate)
        return self._grids[sizes]

    def _again(self, over: float, kept: float) -> float:
        """How much longer it takes to compute layers again until so many bytes less are kept."""
        if over <= 0:
            return 1.0
        part = over / kept
        return 1 + (AGAIN * part / (1 - LEFT) if part <= 1 - LEFT else FORWARD * min(1.0, part))

    def _exposed(self, point: Point, grid: Grid, mine: float, compute: float, count: int) -> float:
        """Seconds of sums and gathers of parameters that computing does not hide."""
        level, keep = point.zero[0] if point.zero else (0, False)
        a_byte = mine * (grid.data - 1) / grid.data * grid.outer
        back = compute * (1 - FORWARD)
        if level < 2:
            return max(0.0, (8 - 4 * level) * a_byte - back / count) + 4 * level * a_byte
        if level == 3 and not keep:
            return max(0.0, 8 * count * a_byte - compute)
        return max(0.0, 4 * count * a_byte - back) + (2 if keep else 4) * a_byte


def _handed(of: Open, ops: tuple[tuple[int, ...], ...]) -> int:
    """Elements of what a layer hands to the next."""
    graph = of.program.graph
    read = {v for op in ops[1] for v in graph.ops[op].operands}
    return sum(graph.values[v].type.elements for op in ops[0] for v in graph.ops[op].results if v in read)
