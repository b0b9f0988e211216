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
from shardlang.cost.planned import work
from shardlang.cost.prices import Prices
from shardlang.cost.work import WEIGHTS, Attention, Item, MemoryBound, Product, Segment, Workload
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.bytes.memory import local_bytes, zero_degree
from shardlang.search.deep.bound import MANY, Costs, PipelineBound, SegmentCost, bound
from shardlang.search.deep.degrees import published
from shardlang.search.deep.memory import fewest, moments, most
from shardlang.search.pipelines import Pipe
from shardlang.search.profiles import Part, Probe, Profiles, widened
from shardlang.search.space import Point
from shardlang.types.dim import BYTES
from shardlang.types.mesh import Axis, Mesh

# Schedules whose order the bound knows.
KNOWN = ("", "gpipe", "1f1b", "interleaved_1f1b")
# Work that depends on the level of ZeRO: that on gradients, and lookups in a table, which cast rows
# where the table has no copy in 16 bits.
_ZERO = ("gradient", "pack", *(name for name, each in REGISTRY.items() if each.table is not None))
Runs = tuple[SegmentCost, SegmentCost, SegmentCost, SegmentCost, SegmentCost]


@dataclass
class Priced:
    """The courses of points. reference: a point on one rank."""

    profiles: Profiles
    hardware: Hardware
    reference: Point
    _runs: dict[object, Runs] = field(default_factory=dict)
    _ideal: dict[object, float] = field(default_factory=dict)

    # --- without a profile

    @cached_property
    def _whole(self) -> tuple[Runs, float]:
        """The runs of the reference, ideal, and examples of its microbatch."""
        profile = self.profiles.profile(self.reference, None)
        if profile is None:
            return (SegmentCost(), SegmentCost(), SegmentCost(), SegmentCost(), SegmentCost()), 1.0
        examples = self.profiles.of.share(dict(self.reference.sizes)) / profile.more.microbatches
        (before, layers, after), (before_b, layers_b, after_b) = profile.forward, profile.backward
        ways = [(before, before_b), *(([f], [b]) for f, b in zip(layers, layers_b, strict=True)), (after, after_b)]
        found = [SegmentCost(self._least(forward), self._least(backward)) for forward, backward in ways]
        return (found[0], found[1], found[2], found[3], found[4]), examples

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
        return Prices(work(profile.more), self.hardware)

    @cached_property
    def floor(self) -> float:
        """Seconds of a step of which all ranks do an equal part."""
        of, (runs, examples) = self.profiles.of, self._whole
        share = of.share(dict(self.reference.sizes)) / examples / of.ranks
        before, first, middle, end, after = (run.forward + run.backward for run in runs)
        return (before + first + middle * (len(self.profiles.array.paths) - 2) + end + after) * share

    def ideal(self, point: Point, found: Pipe) -> float:
        """A bound for all that differs in nothing but ZeRO, splits and what is computed again."""
        of, sizes = self.profiles.of, dict(point.sizes)
        (runs, examples), count = self._whole, found.count
        inner = math.prod(n for name, n in sizes.items() if name not in of.batch_axes and name != self.profiles.staged)
        share = of.share(sizes) / count / examples / inner
        key = found.schedule, len(found.layers), found.size, count, share
        if key not in self._ideal:
            before, first, middle, end, after = (SegmentCost(run.forward * share, run.backward * share) for run in runs)
            course = self._course((before, first, middle, end, after), found, count, 0.0, False)
            self._ideal[key] = bound(course, [0.0] * len(found.layers), 0.0)
        return self._ideal[key]

    # --- by a profile

    def _course(self, runs: Runs, found: Pipe, count: int, sent: float, each: bool) -> PipelineBound:
        before, first, middle, end, after = runs
        last, total, stages = len(found.layers) - 1, len(self.profiles.array.paths), list[SegmentCost]()
        for stage, mine in enumerate(found.layers):
            there, ends = len(mine) and mine[0] == 0, len(mine) and mine[-1] == total - 1
            made = before if stage == 0 else SegmentCost()
            made = made.then(first) if there else made
            made = made.then(middle.times(len(mine) - bool(there) - bool(ends)))
            made = made.then(end) if ends else made
            stages.append(made.then(after) if stage == last else made)
        size = found.size
        turn = count // max(1, count // size)
        return PipelineBound(size, stages, count, turn, found.schedule in KNOWN, sent, each)

    def _costs(self, point: Point, profile: Probe, plain: bool) -> tuple[Runs, Costs]:
        """The runs of a profile on the mesh of a point. plain: without what is parameters'."""
        degrees = self.profiles.degrees(point, profile)
        forward, backward = (profile.forward, profile.backward) if plain else widened(profile, degrees)
        mesh = Mesh(tuple(Axis(name, size) for name, size in point.sizes if size > 1))
        it: Workload = replace(work(profile.more), meshes=(mesh,), axis=self.profiles.staged)
        parts = (_plain(forward), _plain(backward)) if plain else (forward, backward)
        costs = Costs(it, parts, self.hardware)
        key = id(profile), plain, point.sizes if not plain else self._placings(costs, parts)
        if key not in self._runs:
            self._runs[key] = costs.runs
        return self._runs[key], costs

    @staticmethod
    def _placings(costs: Costs, parts: tuple[Part, Part]) -> object:
        """How the groups of all collectives in line lie."""
        axes = {item.axes for way in parts for part in way for segment in part for item in segment.items
                if hasattr(item, "axes")}  # fmt: skip
        return tuple(sorted((each, repr(costs.scripts.prices.placing(0, each))) for each in axes))

    def first(self, point: Point, profile: Probe, found: Pipe) -> float:
        """A bound for all levels of ZeRO."""
        runs, costs = self._costs(point, profile, True)
        sent = costs.scripts.prices.transfer(profile.boundary) if found.size > 1 else 0.0
        course = self._course(runs, found, found.count, sent, False)
        return bound(course, [0.0] * len(found.layers), 0.0)

    def least(self, point: Point, profile: Probe, found: Pipe, again: tuple[Probe, Probe] | None) -> float | None:
        """The bound of a point; None where its memory is too small. again: profiles without and
        with layers that are computed again, where they may be."""
        repeated = self._again(point, profile, found, again[1] if again is not None else None)
        if repeated is None:
            return None
        runs, costs = self._costs(point, profile, False)
        sent = costs.scripts.prices.transfer(profile.boundary) if found.size > 1 else 0.0
        summing = any(r.each for segment in profile.backward[1] for r in segment.reductions)
        course = self._course(runs, found, found.count, sent, summing)
        more = [0.0] * len(found.layers)
        if again is not None and any(repeated):
            (without, _), (with_them, _) = (self._costs(point, each, True) for each in again)
            each_layer = max(0.0, with_them[2].backward - without[2].backward)
            more = [n * each_layer for n in repeated]
        return bound(course, more, self._update(point, profile, found, costs))

    def _again(self, point: Point, profile: Probe, found: Pipe, again: Probe | None) -> list[int] | None:
        """How many layers of each stage have to be computed again at least."""
        limit, counts = self.profiles.limit, [len(mine) for mine in found.layers]
        made = [0] * len(counts)
        if limit is None:
            return made
        every = self.profiles.stages(profile, self.profiles.degrees(point, profile), found)
        for at in dict.fromkeys((0, found.size - 1)):
            mine = found.on[at]
            moment = moments(found.schedule, len(counts), found.size, found.count, at)
            stages = [every[stage] for stage in mine]
            if most(stages, moment) <= limit:
                continue
            less = profile.kept[0] - again.kept[0] if again is not None else 0
            few = fewest(stages, [counts[stage] for stage in mine], less, moment, limit)
            if few is None:
                return None
            for stage, count in zip(mine, few, strict=True):
                made[stage] = count
        return made

    def needs(self, point: Point, profile: Probe, found: Pipe, again: Probe) -> int:
        """The bytes that the first coordinate holds at least, all layers computed again."""
        every, less = self.profiles.stages(profile, self.profiles.degrees(point, profile), found), again.kept[0]
        stages = [
            replace(every[stage], kept=every[stage].kept - (profile.kept[0] - less) * len(found.layers[stage]))
            for stage in found.on[0]
        ]
        return most(stages, moments(found.schedule, len(found.layers), found.size, found.count, 0))

    def _update(self, point: Point, profile: Probe, found: Pipe, costs: Costs) -> float:
        """Seconds of the update, and of the gathers after it, of the coordinate that has fewest
        layers."""
        degrees, plan = self.profiles.degrees(point, profile), profile.more
        layers = min(sum(len(found.layers[stage]) for stage in mine) for mine in found.on)
        params = [plan.params[v] for v in profile.params[1] if plan.graph.values[v].gradient]
        elements = sum(local_bytes(plan, p) // zero_degree(plan, p, degrees.of(p.zero_axes)[1]) for p in params)
        prices = costs.scripts.prices
        kinds = {each.kind for each in costs.work.coordinates[0].updates}
        kinds = kinds if len(kinds - {"clip", "norm"}) == 1 else set()
        seconds = sum(operators.update(self.hardware, k, layers * elements // BYTES["f32"]) for k in sorted(kinds))
        values = [value for _ in range(layers) for value in profile.params[1]]
        gathers = published(plan, values, degrees, 1 << 62)
        return seconds + sum(prices.gather(gather) + prices.unpacked(gather) for gather in gathers)


def _plain(part: Part) -> Part:
    """Segments without the sums and gathers of parameters."""
    before, layers, after = ([_without(segment) for segment in segments] for segments in part)
    return before, layers, after


def _without(segment: Segment) -> Segment:
    items = {item: count for item, count in segment.items.items() if item.place.operator not in _ZERO}
    return Segment(segment.layer, items, segment.times)
