"""Passes of a work -> what a coordinate runs in them, in seconds: for each layer the compute, the
collectives that it waits for, and what begins to travel there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

from shardlang.cost.overlap import Overlap
from shardlang.cost.prices import Prices
from shardlang.cost.work import (
    AGAIN,
    FORWARD,
    INPUTS,
    WEIGHTS,
    Collective,
    Copy,
    Gather,
    Item,
    Items,
    Pass,
    Reduction,
    Segment,
)
from shardlang.facts import actions
from shardlang.facts.buckets import filled
from shardlang.frozen.records import dataclass

Axes = tuple[str, ...]
# A beat is cut in so many parts at most, for the buckets that become whole in it.
PIECES = 4


class CollectiveTime(NamedTuple):
    """A collective on its way. lane: the level of the cluster that it crosses."""

    seconds: float
    lane: int
    kind: str
    axes: Axes


class Unit(NamedTuple):
    """Parameters, by their paths, that come at one time. keep: once a step."""

    paths: frozenset[str]
    jobs: tuple[CollectiveTime, ...]
    keep: bool


@dataclass(frozen=True, slots=True, eq=False)
class Beat:
    """A layer's part of a pass. compute: seconds of its operators; waits: those of the collectives
    in line that nothing hides, by kind and axes; total: both. parts: seconds of each item with its
    count. units: what must have come before, of ZeRO 3."""

    layer: str
    compute: float
    waits: Mapping[tuple[str, Axes], float]
    total: float
    parts: Sequence[tuple[Item, float]]
    units: tuple[Unit, ...] = ()


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are summed together. first: the collectives that begin with it; then: those at
    the end of the step. each: in every microbatch. held: ZeRO's, of which one is on its way at a
    time. at: the stage, and the place of the beat in its backward, that make it whole."""

    first: tuple[CollectiveTime, ...]
    then: tuple[CollectiveTime, ...]
    each: bool
    held: bool
    at: tuple[int, int]


# Kind of action -> the phases that it computes.
_PHASES = dict(zip(actions.KINDS, ((FORWARD,), (AGAIN, INPUTS, WEIGHTS), (AGAIN, INPUTS), (WEIGHTS,)), strict=True))


@dataclass
class Scripts:
    """Those of a work. dual: whether collectives hide beside the gradients of weights."""

    prices: Prices
    overlap: Overlap
    _beats: dict[tuple[int, tuple[str, ...]], Beat] = field(default_factory=dict)
    _scripts: dict[tuple[int, str], list[Beat]] = field(default_factory=dict)

    @cached_property
    def split(self) -> bool:
        """Whether backward is cut in two, which computes gradients of weights later anyhow."""
        return any(action.half for line in self.prices.work.actions for action in line)

    def script(self, stage: int, kind: str) -> list[Beat]:
        """The beats of a stage's pass, in order."""
        key = stage, kind
        if key not in self._scripts:
            of = self.prices.work.stages[stage]
            phases = _PHASES.get(of.cut.amounts_to(kind), ())
            passed: Pass = of.forward if kind == actions.FORWARD else of.backward
            beats = [beat for segment in passed for beat in [self._beat(segment, phases)] * segment.times]
            self._scripts[key] = beats if phases else []
        return self._scripts[key]

    def _beat(self, segment: Segment, phases: tuple[str, ...]) -> Beat:
        key = id(segment), phases
        if key not in self._beats:
            self._beats[key] = self.beat(segment.layer, segment.items, phases, segment.gathers)
        return self._beats[key]

    def once(self, layer: str, items: Items) -> Beat:
        """Items as one beat, of all phases."""
        key = id(items), ()
        if key not in self._beats:
            self._beats[key] = self.beat(layer, items)
        return self._beats[key]

    def beat(self, layer: str, items: Items, phases: Sequence[str] = (), gathers: Sequence[Gather] = ()) -> Beat:
        """Items as one beat; of some phases, by default of all."""
        compute, waits, parts = 0.0, dict[tuple[str, Axes], float](), list[tuple[Item, float]]()
        copies = list[tuple[Item, float]]()
        for item, count in items.items():
            if phases and item.phase not in phases:
                continue
            seconds = self.prices.item(item) * count
            if isinstance(item, Collective):
                hidden = self._hidden(item, seconds, count)
                compute += hidden * (self.prices.hardware.shares.beside - 1)
                seconds -= hidden
                key = item.kind, item.axes
                waits[key] = waits.get(key, 0.0) + seconds
            elif isinstance(item, Copy) and item.beside and self.overlap.saved:
                copies.append((item, seconds))
                continue
            else:
                compute += seconds
            parts.append((item, seconds))
        if copies:
            sent = sum(seconds for _, seconds in copies)
            longer = max(0.0, sent - compute)
            compute += longer
            parts += [(item, seconds * longer / sent) for item, seconds in copies]
        if self.overlap.copies:
            compute += sum(self.prices.unpacked(gather) for gather in gathers)
        total = compute + sum(waits.values())
        units: dict[tuple[frozenset[str], bool], list[CollectiveTime]] = {}
        for gather in gathers:
            units.setdefault((gather.unit, gather.keep), []).append(self.gather(gather))
        made = tuple([Unit(paths, tuple(jobs), keep) for (paths, keep), jobs in units.items()])
        return Beat(layer, compute, waits, total, parts, made)

    def _hidden(self, item: Collective, seconds: float, count: int) -> float:
        """Seconds of a collective that go by beside what it names."""
        if not self.overlap.dual or self.split:
            return 0.0
        return min(seconds, sum(self.prices.item(each) for each in item.beside) * count)

    def gather(self, gather: Gather) -> CollectiveTime:
        lane = self.prices.placing(gather.mesh, gather.axes).level
        return CollectiveTime(self.prices.gather(gather), lane, "all_gather", gather.axes)

    # --- gradients

    def buckets(self, stages: Sequence[int]) -> list[Bucket]:
        """Those of a coordinate."""
        items = [((at, each), each.group, each.size) for at, each in self._reductions(stages)]
        there: dict[tuple[object, ...], list[Bucket]] = {}
        for _, members in filled(items[::-1], self.prices.work.bucket_bytes):
            bucket = self._bucket([each for _, each in members], members[-1][0])
            there.setdefault((bucket.at, bucket.each, bucket.held), []).append(bucket)
        return [bucket for mine in there.values() for bucket in joined(mine)]

    def _reductions(self, stages: Sequence[int]) -> Iterator[tuple[tuple[int, int], Reduction]]:
        for stage in sorted(stages, reverse=True):
            place = 0
            for segment in self.prices.work.stages[stage].backward:
                for _ in range(segment.times):
                    yield from (((stage, place), reduction) for reduction in segment.reductions)
                    place += 1

    def _bucket(self, members: Sequence[Reduction], at: tuple[int, int]) -> Bucket:
        sums: dict[tuple[str, Axes], int] = {}
        for kind, axes, size in (part for member in members for part in member.parts):
            sums[kind, axes] = sums.get((kind, axes), 0) + size
        mesh, held = members[0].mesh, any(kind == "reduce_scatter" for kind, _ in sums)
        jobs = []
        for (kind, axes), size in sums.items():
            seconds = self.prices.collective(kind, mesh, axes, size)
            jobs.append(CollectiveTime(seconds, self.prices.placing(mesh, axes).level, kind, axes))
        first = tuple([job for job in jobs if job.kind == "reduce_scatter" or not held])
        then = tuple([job for job in jobs if job not in first])
        return Bucket(first, then, members[0].each, held, at)


def joined(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Buckets of one beat, neighbours together where they are more than it is cut in."""
    each = -(-len(buckets) // PIECES)
    found = []
    for begin in range(0, len(buckets), each):
        some = buckets[begin : begin + each]
        first, then = _added([job for b in some for job in b.first]), _added([job for b in some for job in b.then])
        found.append(Bucket(first, then, some[0].each, some[0].held, some[0].at))
    return found


def _added(jobs: Sequence[CollectiveTime]) -> tuple[CollectiveTime, ...]:
    """Jobs of one kind as one."""
    sums: dict[tuple[int, str, Axes], float] = {}
    for job in jobs:
        sums[job[1:]] = sums.get(job[1:], 0.0) + job.seconds
    return tuple([CollectiveTime(seconds, *kind) for kind, seconds in sums.items()])
