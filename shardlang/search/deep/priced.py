"""Points of a deep program -> their courses in seconds, as bound.py needs them: of an ideal program
first, in which nothing is sent and all devices reach their rates, then by a profile without
parameters' sums, then with all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property

from shardlang.cost import operators
from shardlang.cost.hardware import Hardware
from shardlang.cost.overlap import EMITTED
from shardlang.cost.planned import work
from shardlang.cost.prices import Prices
from shardlang.cost.scripts import Scripts
from shardlang.cost.work import WEIGHTS, Attention, Collective, Item, MemoryBound, Product, Segment
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import REGISTRY
from shardlang.search.deep.bound import MANY, PipelineBound, SegmentCost, bound, cost_of
from shardlang.search.deep.degrees import gathered
from shardlang.search.pipelines import Pipe
from shardlang.search.profiles import Probe, Profiles, Run
from shardlang.search.space import Point
from shardlang.step.parameters import local_bytes, zero_degree
from shardlang.types.dim import BYTES
from shardlang.types.mesh import Axis, Mesh

# Schedules whose order the bound knows.
KNOWN = ("", "gpipe", "1f1b", "interleaved_1f1b")
# Work that depends on the level of ZeRO: that on gradients, and lookups in a table, which cast rows
# where the table has no copy in 16 bits.
_ZERO = ("gradient", "pack", *(name for name, each in REGISTRY.items() if each.table is not None))


@dataclass
class Priced:
    """The courses of points. reference: a point on one rank."""

    profiles: Profiles
    hardware: Hardware
    reference: Point
    _runs: dict[object, Sequence[SegmentCost]] = field(default_factory=dict)
    _ideal: dict[object, float] = field(default_factory=dict)

    # --- without a profile

    @cached_property
    def _whole(self) -> tuple[Sequence[SegmentCost], float]:
        """The runs of the reference, ideal, and examples of its microbatch."""
        profile = self.profiles.profile(self.reference, None)
        if profile is None:
            return [SegmentCost()] * 5, 1.0
        examples = self.profiles.of.share(dict(self.reference.sizes)) / profile.plan.microbatches
        return [SegmentCost(*map(self._least, run)) for run in profile.runs], examples

    def _least(self, segments: Sequence[Segment]) -> float:
        return sum(self._seconds(item) * count for segment in segments for item, count in segment.items.items())

    def _seconds(self, item: Item) -> float:
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
        return self._prices.item(many) / MANY

    @cached_property
    def _prices(self) -> Prices:
        profile = self.profiles.profile(self.reference, None)
        assert profile is not None
        return Prices(work(profile.plan), self.hardware)

    @cached_property
    def floor(self) -> float:
        """Seconds of a step of which all ranks do an equal part."""
        of, (runs, examples) = self.profiles.of, self._whole
        share = of.share(dict(self.reference.sizes)) / examples / of.ranks
        before, first, middle, end, after = (run.forward + run.backward for run in runs)
        return (before + first + middle * (self.profiles.array.count - 2) + end + after) * share

    def ideal(self, point: Point, found: Pipe) -> float:
        """A bound for all that differs in nothing but ZeRO, splits and what is computed again."""
        of, sizes = self.profiles.of, dict(point.sizes)
        (runs, examples), count = self._whole, found.count
        inner = math.prod(n for name, n in sizes.items() if name not in of.batch_axes and name != of.staged)
        share = of.share(sizes) / count / examples / inner
        key = found.schedule, len(found.layers), found.size, count, share
        if key not in self._ideal:
            ideal = [SegmentCost(run.forward * share, run.backward * share) for run in runs]
            course = self._course(ideal, found, 0.0, False)
            self._ideal[key] = bound(course, [0.0] * len(found.layers), 0.0)
        return self._ideal[key]

    # --- by a profile

    def _course(self, runs: Sequence[SegmentCost], found: Pipe, sent: float, each: bool) -> PipelineBound:
        stages = list[SegmentCost]()
        for stage in range(len(found.layers)):
            made = SegmentCost()
            for run, times in found.runs(stage).items():
                made = made.then(runs[run].times(times)) if times else made
            stages.append(made)
        turn = found.count // max(1, found.count // found.size)
        return PipelineBound(found.size, stages, found.count, turn, found.schedule in KNOWN, sent, each)

    def _costs(self, point: Point, profile: Probe, plain: bool) -> tuple[Sequence[SegmentCost], Prices]:
        """The runs of a profile on the mesh of a point. plain: without what is parameters'."""
        mesh = Mesh(tuple(Axis(name, size) for name, size in point.sizes if size > 1))
        prices = Prices(replace(work(profile.plan), meshes=(mesh,), axis=self.profiles.of.staged), self.hardware)
        wide = profile.widened(self.profiles.degrees(point, profile)) if not plain else _plain(profile.runs)
        key = id(profile), plain, point.sizes if not plain else _placings(prices, wide)
        if key not in self._runs:
            scripts = Scripts(prices, EMITTED)
            self._runs[key] = [cost_of(scripts, *run) for run in wide]
        return self._runs[key], prices

    def first(self, point: Point, profile: Probe, found: Pipe) -> float:
        """A bound for all levels of ZeRO."""
        runs, prices = self._costs(point, profile, True)
        sent = prices.transfer(profile.boundary) if found.size > 1 else 0.0
        course = self._course(runs, found, sent, False)
        return bound(course, [0.0] * len(found.layers), 0.0)

    def least(self, point: Point, profile: Probe, found: Pipe, again: tuple[Probe, Probe] | None) -> float | None:
        """The bound of a point; None where its memory is too small. again: profiles without and
        with layers that are computed again, where they may be."""
        repeated = self._again(point, profile, found, again[1] if again is not None else None)
        if repeated is None:
            return None
        runs, prices = self._costs(point, profile, False)
        sent = prices.transfer(profile.boundary) if found.size > 1 else 0.0
        summing = any(r.each for _, layer in profile.runs[1:-1] for segment in layer for r in segment.reductions)
        course = self._course(runs, found, sent, summing)
        more = [0.0] * len(found.layers)
        if again is not None and any(repeated):
            (without, _), (with_them, _) = (self._costs(point, each, True) for each in again)
            each_layer = max(0.0, with_them[2].backward - without[2].backward)
            more = [n * each_layer for n in repeated]
        return bound(course, more, self._update(point, profile, found, prices))

    def _again(self, point: Point, profile: Probe, found: Pipe, again: Probe | None) -> list[int] | None:
        """How many layers of each stage have to be computed again at least."""
        limit, made = self.profiles.limit, [0] * len(found.layers)
        if limit is None:
            return made
        ends = list(dict.fromkeys((0, found.size - 1)))
        for at, held in zip(ends, self.profiles.coordinates(point, profile, found, ends), strict=True):
            if held.most <= limit:
                continue
            few = held.fewest(profile.kept[0] - again.kept[0] if again is not None else 0, limit)
            if few is None:
                return None
            for stage, count in zip(found.on[at], few, strict=True):
                made[stage] = count
        return made

    def needs(self, point: Point, profile: Probe, found: Pipe, again: Probe) -> int:
        """The bytes that the first coordinate holds at least, all layers computed again."""
        (held,) = self.profiles.coordinates(point, profile, found, (0,))
        return held.again(profile.kept[0] - again.kept[0], held.layers).most

    def _update(self, point: Point, profile: Probe, found: Pipe, prices: Prices) -> float:
        """Seconds of the update, and of the gathers after it, of the coordinate that has fewest
        layers."""
        degrees, plan = self.profiles.degrees(point, profile), profile.plan
        layers = min(sum(len(found.layers[stage]) for stage in mine) for mine in found.on)
        params = [plan.params[v] for v in profile.params[1] if plan.graph.values[v].gradient]
        elements = sum(local_bytes(plan, p) // zero_degree(plan, p, degrees.of(p.zero_axes)[1]) for p in params)
        kinds = {each.kind for each in prices.work.coordinates[0].updates}
        kinds = kinds if len(kinds - {"clip", "norm"}) == 1 else set()
        seconds = sum(operators.update(self.hardware, k, layers * elements // BYTES["f32"]) for k in sorted(kinds))
        gathers = list(gathered(plan, profile.params[1], layers, degrees))
        return seconds + sum(prices.gather(gather) + prices.unpacked(gather) for gather in gathers)


def _placings(prices: Prices, runs: Sequence[Run]) -> object:
    """How the groups of all collectives in line lie."""
    segments = (segment for run in runs for way in run for segment in way)
    axes = {item.axes for segment in segments for item in segment.items if isinstance(item, Collective)}
    return tuple(sorted((each, repr(prices.placing(0, each))) for each in axes))


def _plain(runs: Sequence[Run]) -> Sequence[Run]:
    """Runs without the sums and gathers of parameters."""
    return [([_without(segment) for segment in forward], [_without(segment) for segment in backward])
            for forward, backward in runs]  # fmt: skip


def _without(segment: Segment) -> Segment:
    items = {item: count for item, count in segment.items.items() if item.place.operator not in _ZERO}
    return Segment(segment.layer, items, segment.times)
