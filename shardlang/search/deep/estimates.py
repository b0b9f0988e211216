"""A point of a deep program and its flat plans -> a lower bound on the seconds of its step, the
layers that it has to compute again at least, and about how many bytes it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise

from shardlang.cost import operators
from shardlang.cost.hardware import Hardware
from shardlang.cost.overlap import EMITTED
from shardlang.cost.planned import work
from shardlang.cost.prices import Prices
from shardlang.cost.scripts import Scripts
from shardlang.cost.work import WEIGHTS, Attention, Gather, Item, MemoryBound, Place, Product
from shardlang.folds.fits import Device, device
from shardlang.folds.reserved.communicators import Communicator, channels, communicators
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import REGISTRY
from shardlang.search.deep.bound import MANY, SegmentCost, bound, cost_of, in_line, linked
from shardlang.search.deep.flat import FlatPlan, FlatPlans
from shardlang.search.deep.memory import CoordinateMemory, MemoryEstimate, moments
from shardlang.search.pipelines import Pipe, pipe
from shardlang.search.space import BUCKETS, MB, Open, Point
from shardlang.step.parameters import local_bytes, zero_degree
from shardlang.syntax import ast
from shardlang.types.dim import BYTES
from shardlang.types.mesh import Axis, Mesh

# Work that depends on the level of ZeRO: that on gradients, and lookups in a table, which cast rows
# where the table has no copy in 16 bits.
_ZERO = ("gradient", "pack", *(name for name, each in REGISTRY.items() if each.table is not None))


@dataclass(frozen=True)
class Estimate:
    """A point with the layers that are computed again, and bytes at its peak."""

    point: Point
    memory: int


@dataclass
class Estimates:
    """limit: the bytes of a device, where that is known."""

    plans: FlatPlans
    hardware: Hardware
    limit: int | None
    _costs: dict[object, Sequence[SegmentCost]] = field(default_factory=dict)

    @property
    def of(self) -> Open:
        return self.plans.of

    def pipe(self, point: Point) -> Pipe | None:
        return pipe(self.of, self.plans.array, point)

    # --- seconds

    def seconds(self, point: Point, what: str | None = None) -> float | None:
        """The bound of a point; None where it is illegal. what: how layers are computed again that
        have to be, at least; None where all are not enough."""
        flat, found = self.plans.flat(point, None), self.pipe(point)
        again = self.plans.flat(point, what) if what is not None else flat
        if flat is None or found is None or again is None:
            return None
        costs, prices = self._priced(point, flat)
        more = [0.0] * len(found.layers)
        if what is not None:
            counts = self._again(flat, found, again)
            if counts is None:
                return None
            without, with_them = (self._priced(point, each)[0][each.begin + 1].backward for each in (flat, again))
            more = [count * max(0.0, with_them - without) for count in counts]
        runs = [in_line(costs[flat.stage(found.layers, at)]) for at in range(len(found.layers))]
        sent = prices.transfer(flat.boundary) if found.size > 1 else 0.0
        bucket = max(BUCKETS) * MB if self.of.large and point.bucket else flat.plan.bucket_bytes
        least = bound(found, runs, more, sent, bucket)
        if any(reduction.each for segment in flat.backward for reduction in segment.reductions):
            least = max(least, linked(found, runs))
        return least + self._update(flat, found, prices)

    def _priced(self, point: Point, flat: FlatPlan) -> tuple[Sequence[SegmentCost], Prices]:
        """The seconds of a flat plan's segments on the mesh of a point."""
        mesh = Mesh(tuple(Axis(name, size) for name, size in point.sizes if size > 1))
        prices = Prices(replace(work(flat.plan), meshes=(mesh,), axis=self.of.staged), self.hardware)
        key = id(flat), point.sizes
        if key not in self._costs:
            scripts, known, costs = Scripts(prices, EMITTED), dict[tuple[int, int], SegmentCost](), []
            for both in zip(flat.forward, flat.backward, strict=True):
                at = id(both[0]), id(both[1])
                costs.append(known[at] if at in known else known.setdefault(at, cost_of(scripts, *both)))
            self._costs[key] = costs
        return self._costs[key], prices

    def _update(self, flat: FlatPlan, found: Pipe, prices: Prices) -> float:
        """Seconds of the update, and of the gathers of ZeRO 1 and 2 after it, of the coordinate
        that has fewest layers. Those of a type are gathered at once: with smaller buckets that
        takes no less."""
        plan, layers = flat.plan, min(sum(len(found.layers[stage]) for stage in mine) for mine in found.on)
        params = [plan.params[v] for v in flat.params[1] if plan.graph.values[v].gradient]
        elements = layers * sum(local_bytes(plan, p) // zero_degree(plan, p) for p in params) // BYTES["f32"]
        kinds = {each.kind for each in work(plan).coordinates[0].updates}
        seconds = 0.0
        if len(kinds - {"clip", "norm"}) == 1:
            seconds = sum(operators.update(self.hardware, kind, elements) for kind in sorted(kinds))
        parts: dict[tuple[str, int, tuple[str, ...]], int] = {}
        for param in (p for p in params if p.zero in (1, 2)):
            mesh, dtype = param.stored.mesh, plan.graph.values[param.value].type.dtype
            axes = plan.meshes[mesh].ranked(param.zero_axes)
            part = -(-plan.local_bytes(param.value, param.stored) // plan.meshes[mesh].degree(axes))
            parts[dtype, mesh, axes] = parts.get((dtype, mesh, axes), 0) + layers * part
        for (dtype, mesh, axes), part in parts.items():
            degree = plan.meshes[mesh].degree(axes)
            gather = Gather(Place("step", "", "step"), dtype, mesh, axes, (degree - 1) * part, degree * part)
            seconds += prices.gather(gather) + prices.unpacked(gather)
        return seconds

    # --- without a flat plan of the point

    @cached_property
    def floor(self) -> float:
        """Seconds of a step of which all ranks do an equal part, by a plan on one rank, of one
        example a microbatch."""
        of = self.of
        sizes = {axis.name: 1 for axis in of.axes}
        count = of.share(sizes) if of.hole(ast.Microbatches) else 0
        point = Point(tuple(sizes.items()), microbatches=count, zero=((0, False),) * len(of.zeros))
        flat = self.plans.flat(point, None)
        if flat is None:
            return 0.0
        prices = Prices(work(flat.plan), self.hardware)
        items = (it for segment in (*flat.forward, *flat.backward) for it in segment.items.items())
        return sum(_least(prices, item) * times for item, times in items) * flat.plan.microbatches / of.ranks

    # --- bytes

    def fits(self, point: Point) -> bool:
        """Whether a point may fit with nothing computed again."""
        flat, found = self.plans.flat(point, None), self.pipe(point)
        return flat is not None and found is not None and self._again(flat, found, flat) is not None

    def _again(self, flat: FlatPlan, found: Pipe, again: FlatPlan) -> list[int] | None:
        """How many layers of each stage have to be computed again at least; None where all are not
        enough."""
        made = [0] * len(found.layers)
        ends = list(dict.fromkeys((0, found.size - 1)))
        for at, held in zip(ends, self.coordinates(flat, found, ends), strict=True):
            if self.limit is None or held.most <= self.limit:
                continue
            few = held.fewest(flat.kept[0] - again.kept[0], self.limit)
            if few is None:
                return None
            for stage, count in zip(found.on[at], few, strict=True):
                made[stage] = count
        return made

    def estimate(self, point: Point, what: str | None, limit: int | None = None) -> Estimate | None:
        """The estimate with the fewest layers computed again, in a way (None: none is); None where
        the point is illegal. limit: of bytes, if it is another than that of all points."""
        limit = self.limit if limit is None else limit
        flat, found = self.plans.flat(point, None), self.pipe(point)
        again = self.plans.flat(point, what) if what is not None else flat
        if flat is None or again is None or found is None:
            return None
        less, chosen, memory = flat.kept[0] - again.kept[0], set[int](), 0
        every = [*self.coordinates(flat, found, range(found.size))]
        bucket = self._bucket(point, flat, every, limit)
        for mine, held in zip(found.on, every, strict=True):
            beside = again.beside[len(found.layers) - 1 in mine]
            needs = held.most + beside
            if what is not None and limit is not None and needs > limit:
                few = held.fewest(less, limit - beside) or held.layers
                needs = held.again(less, few).most + beside
                chosen.update(n for stage, some in zip(mine, few, strict=True) for n in found.layers[stage][:some])
            memory = max(memory, needs, held.summed(bucket))
        layers = tuple(self.plans.array.paths[at] for at in sorted(chosen))
        bucket = bucket // MB if point.bucket else 0
        return Estimate(replace(point, layers=layers, again=what or "" if layers else "", bucket=bucket), memory)

    def _bucket(self, point: Point, flat: FlatPlan, every: Sequence[CoordinateMemory], limit: int | None) -> int:
        """The size of buckets: of a large space the largest that fits, where that is open."""
        written = point.bucket * MB or flat.plan.bucket_bytes
        sizes = [size * MB for size in BUCKETS] if self.of.large and point.bucket else [written]
        return max((n for n in sizes if limit is None or all(x.summed(n) <= limit for x in every)), default=written)

    def coordinates(self, flat: FlatPlan, found: Pipe, some: Iterable[int]) -> Iterator[CoordinateMemory]:
        """The bytes of some coordinates; what is received and sent is kept too."""
        for at in some:
            stages = [self._stage(flat, found, stage) for stage in found.on[at]]
            stages[0] = stages[0].plus(MemoryEstimate(self.of_nccl(flat, found, at)))
            layers = [len(found.layers[stage]) for stage in found.on[at]]
            moment = moments(found.schedule, len(found.layers), found.size, found.count, at)
            yield CoordinateMemory(stages, layers, moment)

    @staticmethod
    def _stage(flat: FlatPlan, found: Pipe, stage: int) -> MemoryEstimate:
        before, layer, after = flat.held
        crossing = found.sends(stage) + found.sends(stage + 1)
        made = layer.times(len(found.layers[stage])).plus(MemoryEstimate(kept=crossing * flat.boundary))
        made = made.plus(before) if stage == 0 else made
        return made.plus(after) if stage == len(found.layers) - 1 else made

    def of_nccl(self, flat: FlatPlan, found: Pipe, at: int) -> int:
        """The bytes that NCCL takes on a coordinate's ranks, where the device says what is
        reserved: for the groups of the flat plan; with stages, for that of all and for messages."""
        if self.device is None or not self.device.reserved:
            return 0
        on, more = found.coordinates, [Communicator(self.of.ranks)] * (found.size > 1)
        crossed = {edge for pair in pairwise(on) if pair[0] != pair[1] for edge in (pair, pair[::-1])}
        more += [Communicator(2)] * len(channels(on, crossed, at))
        node = self.device.node or self.of.ranks
        return sum(each.bytes(self.device.group, node) for each in (*communicators(flat.plan)[0], *more))

    @cached_property
    def device(self) -> Device | None:
        return device(self.of.program)


def _least(prices: Prices, item: Item) -> float:
    """Seconds of an item as a part of one of many times its size: no split makes it faster."""
    match item:
        case Product():
            many: Item = replace(item, m=item.m * MANY)
            if item.phase == WEIGHTS:
                many = replace(item, k=item.k * MANY)
        case Attention():
            many = replace(item, heads=item.heads * MANY, kv_heads=item.kv_heads * MANY)
        case MemoryBound() if item.place.operator not in _ZERO:
            read, written = item.read * MANY, item.written * MANY
            many = replace(item, read=read, written=written, elements=item.elements * MANY, kernels=1)
        case _:
            return 0.0
    return prices.item(many) / MANY
