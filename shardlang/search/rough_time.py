"""A point -> about how long its step takes, in closed form: only the order in which points are
looked at follows from it, and nothing that is told."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from shardlang.cost.collectives import placed, seconds
from shardlang.cost.hardware import Hardware
from shardlang.folds.flops import step_flops
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.search.layers import arrays
from shardlang.search.space import BUCKETS, Open, Point, Splits
from shardlang.types.dim import Dim

# Of a device's peak; what a layer keeps for backward of each byte that it hands on in f32, the part
# of that which is left where all but products is computed again, and what this takes of a step.
PEAK, KEPT, LEFT, AGAIN = 0.4, 16, 0.5, 0.04
# All of a forward of three such parts: computed again where that is not enough.
FORWARD = 1 / 3
# Bytes of a parameter on each rank, and those that the ranks of the batch share: of f32 and bf16,
# its gradient and two moments, by the level of ZeRO.
HELD = {(0, False): (18, 0), (1, False): (6, 12), (2, False): (2, 16), (3, False): (0, 18), (3, True): (2, 16)}
# Bytes of a large collective by which rates are found.
LARGE = 1e9


@dataclass(frozen=True, slots=True)
class RoughMesh:
    """A mesh with what is split over it. stages: how many there are. cut: ranks among which values
    are cut; zero: over which ZeRO cuts. params: elements of a rank. summed, handed: seconds for a
    byte of its gradients, and of all that a layer hands on. latency: of what a layer sends at
    least."""

    stages: int
    cut: int
    zero: int
    params: float
    summed: float
    handed: float
    latency: float


@dataclass
class Guess:
    """A guess at the points of one program."""

    of: Open
    hardware: Hardware
    limit: float
    _grids: dict[tuple[tuple[tuple[str, int], ...], Splits], RoughMesh] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.of.program.graph
        self.compute = step_flops(graph) / (self.of.ranks * PEAK * (self.hardware.compute or 1e12))
        self.params = Counter[frozenset[Dim]]()
        for value in graph.values:
            if value.kind is Kind.PARAM:
                self.params[frozenset(dim for term in value.type.dims for dim in term)] += value.type.elements
        self.largest = 4 * max((v.type.elements for v in graph.values if v.gradient), default=0)
        found = arrays(graph)
        self.layers = sum(array.count for array in found) or 1
        self.handed = 4 * max((sum(v.type.elements for v in array.handed(graph)) for array in found), default=0)

    def __call__(self, point: Point, levels: Sequence[Point] = (), known: float | None = None) -> float:
        """Seconds of a point, with the best of some levels of ZeRO (by default its own). known:
        those of all but its parameters, nothing computed again."""
        grid, count, virtual = self._grid(point), point.microbatches or 1, max(1, point.virtual)
        alive = min(count, grid.stages * (1 + (virtual > 1) * (1 - 1 / grid.stages)))
        kept = (KEPT * self.handed * self.layers / grid.stages * alive + 2 * self.largest) / (grid.cut * count)
        bubble = (grid.stages - 1) / (count * virtual)
        inline = (self.handed * grid.handed + count * grid.latency) * self.layers / grid.stages
        plain = known if known is not None else (self.compute + inline) * (1 + bubble)
        rare = 1 + 0.05 * BUCKETS.index(point.bucket) if point.bucket and not self.of.large else 1.0
        rare += 0.02 * sum(may for _, _, uses in point.splits for _, may in uses)
        every = dict.fromkeys(each.zero[0] if each.zero else (0, False) for each in levels or (point,))
        return min(self._with_zero(level, grid, kept, plain, count) for level in every) * rare

    def _with_zero(self, level: tuple[int, bool], grid: RoughMesh, kept: float, plain: float, count: int) -> float:
        own, shared = HELD[level]
        sizes = grid.params * (own + shared / grid.zero)
        again = self._again(sizes + kept - self.limit, kept)
        time = plain * again + self._exposed(level, grid, self.compute * again, count)
        least = sizes + kept / KEPT
        return time * (1 if least <= self.limit else 1e3 * least / self.limit)

    def _grid(self, point: Point) -> RoughMesh:
        key = point.sizes, point.splits
        if key not in self._grids:
            self._grids[key] = self._placed(dict(point.sizes), point.splits)
        return self._grids[key]

    def _placed(self, sizes: dict[str, int], splits: Splits) -> RoughMesh:
        """The part of each axis: it has the stages, cuts parameters, or cuts values alone, and then
        gradients are summed over it."""
        over = {dim: [axis for axis, _ in uses] for _, name, uses in splits for dim in self.of.dims[name]}
        rest = [axis for axis in sizes if axis != self.of.staged]
        tensor = {axis for dims in self.params for dim in dims for axis in over.get(dim, ())}
        params = sum(
            count / math.prod(sizes[axis] for axis in {axis for dim in dims for axis in over.get(dim, ())})
            for dims, count in self.params.items()
        )
        zero = math.prod(sizes.get(axis.text, 1) for rule in self.of.zeros[:1] for axis in rule.axes)
        many = math.prod(sizes[axis] for axis in rest)
        stages = sizes.get(self.of.staged, 1)
        outer, inner = [x for x in rest if x not in tensor], [x for x in rest if x in tensor]
        others = [x for x in outer if x not in self.of.batch_uses]
        sums, parts, seqs = (self._a_byte(sizes, axes) for axes in (outer, inner, others))
        cuts, alone = (math.prod(sizes[axis] for axis in axes) for axes in (inner, others))
        handed = (4 * parts * cuts + seqs / 8 * alone) / many
        latency = 8 * self._a_byte(sizes, inner, 1.0) + 4 * self._a_byte(sizes, others, 1.0)
        return RoughMesh(stages, many, max(1, zero), params / stages, sums, handed, latency)

    def _a_byte(self, sizes: dict[str, int], axes: Sequence[str], of: float = LARGE) -> float:
        """Seconds to gather a byte, one of so many, over axes, from the parts of their ranks."""
        numbers = tuple(at for at, axis in enumerate(sizes) if axis in axes)
        placing = placed(self.hardware, tuple(sizes.values()), numbers)
        return seconds(self.hardware, "all_gather", placing, of) / of * (1 - 1 / placing.members)

    def _again(self, over: float, kept: float) -> float:
        """How much longer it takes to compute layers again until so many bytes less are kept."""
        if over <= 0:
            return 1.0
        less = over / kept / (1 - LEFT)
        return 1 + AGAIN * min(1.0, less) + (FORWARD - AGAIN) * min(1.0, max(0.0, less - 1) * (1 - LEFT) / LEFT)

    def _exposed(self, zero: tuple[int, bool], grid: RoughMesh, compute: float, count: int) -> float:
        """Seconds of sums and gathers of parameters that computing does not hide."""
        level, keep = zero
        a_byte, back = grid.params * grid.summed, compute * (1 - FORWARD)
        if level < 2:
            return max(0.0, (8 - 4 * level) * a_byte - back / count) + 4 * level * a_byte
        if level == 3 and not keep:
            return max(0.0, 8 * count * a_byte - compute)
        return max(0.0, 4 * count * a_byte - back) + (2 if keep else 4) * a_byte
