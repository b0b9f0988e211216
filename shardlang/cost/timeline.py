"""A work, its prices and an overlap table -> the course of a step: when each action of a coordinate
begins and ends, what it computes and what it waits for.

A coordinate along the axis of stages has one lane that computes, and one for each level of the
cluster on which something travels meanwhile, first in, first out. Its other ranks are alike.
Actions of many microbatches repeat: `course` simulates few of them, and the rest is their period.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, NamedTuple

from shardlang.cost.overlap import Overlap
from shardlang.cost.prices import Prices
from shardlang.cost.scripts import Axes, Beat, Bucket, CollectiveTime, Scripts
from shardlang.cost.work import Items, Workload
from shardlang.facts.actions import Action
from shardlang.facts.gathers import GatherState
from shardlang.frozen.records import dataclass
from shardlang.plan.pipeline.schedules import SCHEDULES

# Layers of what no layer does.
STEP, BETWEEN = "step", "stages"
# Rounds of actions that are simulated before the rest counts as their period.
ROUNDS = 3


class TimelineSpan(NamedTuple):
    """Something on a lane of a coordinate. lane: -1 for compute, else the level."""

    begin: float
    end: float
    lane: int
    name: str


@lru_cache(maxsize=1024)
def _name(kind: str, axes: Axes) -> str:
    return f"{kind} {', '.join(axes)}"


def _zeros() -> dict[Any, float]:
    return defaultdict(float)


@dataclass
class CoordinateTimeline:
    """The course of one coordinate. beats: how often each; waits: seconds by layer, kind and axes;
    slower: seconds that compute has lost beside collectives, by layer; idle: seconds; once: seconds
    of the update and what is around it."""

    beats: dict[Beat, float] = field(default_factory=_zeros)
    waits: dict[tuple[str, str, Axes], float] = field(default_factory=_zeros)
    slower: dict[str, float] = field(default_factory=_zeros)
    idle: float = 0.0
    once: dict[str, float] = field(default_factory=_zeros)
    spans: list[TimelineSpan] = field(default_factory=list)


@dataclass(frozen=True)
class Course:
    """step: seconds. lines: of each coordinate; its beats, waits, slower, once and idle add up to
    the step."""

    step: float
    lines: tuple[CoordinateTimeline, ...]


def course(prices: Prices, overlap: Overlap, whole: bool = False) -> Course:
    """The course of a step. whole: every microbatch is simulated."""
    work = prices.work
    few = None if whole else _fewer(work)
    scripts = Scripts(prices, overlap)
    if few is None:
        return _Simulation(scripts, work.actions).run()
    (less, first), (more, second) = few
    a, b = _Simulation(scripts, first).run(), _Simulation(scripts, second).run()
    times = (work.microbatches - less) / (more - less)
    lines = [_further(x, y, times) for x, y in zip(a.lines, b.lines, strict=True)]
    return Course(a.step + (b.step - a.step) * times, tuple(lines))


def _fewer(work: Workload) -> tuple[tuple[int, tuple[tuple[Action, ...], ...]], ...] | None:
    """Numbers of microbatches with the actions for them, one round apart; None where the whole is
    no more, or the schedule is a file's."""
    count, coordinates = work.microbatches, len(work.coordinates)
    less, more = ROUNDS * coordinates, (ROUNDS + 1) * coordinates
    if count <= more:
        return None
    if not work.axis:
        return tuple([(n, (tuple([a for a in work.actions[0] if a.microbatch < n]),)) for n in (less, more)])
    known = SCHEDULES.get(work.schedule)
    stages = len(work.stages)
    if known is None or count % coordinates or not all(known.fits(stages, coordinates, n) for n in (less, more)):
        return None
    return tuple([(n, known.make(stages, coordinates, n)) for n in (less, more)])


def _further(a: CoordinateTimeline, b: CoordinateTimeline, times: float) -> CoordinateTimeline:
    """A line with what `b` has more than `a`, so many times."""

    def further(x: Mapping[Any, float], y: Mapping[Any, float]) -> dict[Any, float]:
        return {key: x.get(key, 0.0) + (y.get(key, 0.0) - x.get(key, 0.0)) * times for key in {**x, **y}}

    made = {name: further(getattr(a, name), getattr(b, name)) for name in ("beats", "waits", "slower", "once")}
    return CoordinateTimeline(idle=a.idle + (b.idle - a.idle) * times, spans=b.spans, **made)


class _Simulation:
    def __init__(self, scripts: Scripts, actions: Sequence[Sequence[Action]]) -> None:
        self.scripts, self.work = scripts, scripts.prices.work
        on = {action.stage: at for at, line in enumerate(actions) for action in line}
        self.lanes = [_Coordinate(scripts, at, line) for at, line in enumerate(actions)]
        self.on = on
        self.done: dict[tuple[int, bool, int], float] = {}

    def run(self) -> Course:
        moved = True
        while moved:
            moved = False
            for lane in self.lanes:
                while lane.at < len(lane.actions) and (ready := self._ready(lane)) is not None:
                    action = lane.actions[lane.at]
                    lane.act(*ready)
                    if not action.apart:
                        self.done[action.stage, action.forward, action.microbatch] = lane.now
                    moved = True
        for lane in self.lanes:
            lane.settle()
        if any(lane.joins for lane in self.lanes):  # the norm is of all ranks
            last = max(lane.now for lane in self.lanes)
            for lane in self.lanes:
                lane.wait_until(last)
        for lane in self.lanes:
            lane.update()
        end = max(lane.now for lane in self.lanes)
        for lane in self.lanes:
            lane.wait_until(end)
        return Course(end, tuple([lane.line for lane in self.lanes]))

    def _ready(self, lane: _Coordinate) -> tuple[float, float] | None:
        """When what the next action needs is there, and how long it has travelled; None where it
        has not been sent."""
        action = lane.actions[lane.at]
        stage, part = action.stage, action.microbatch
        source = stage - 1 if action.forward else stage + 1
        if action.apart or not 0 <= source < len(self.work.stages):
            return 0.0, 0.0
        sent = self.done.get((source, action.forward, part))
        if sent is None:
            return None
        if self.on[source] == self.on[stage]:
            return sent, 0.0
        back = not action.forward
        seconds = self.scripts.prices.transfer(self.work.stages[stage + back].received[back])
        return max(sent, lane.posted(self.scripts.overlap.posted)) + seconds, seconds


class _Coordinate:
    """One coordinate's step."""

    def __init__(self, scripts: Scripts, at: int, actions: Sequence[Action]) -> None:
        self.scripts, self.actions = scripts, actions
        self.own = scripts.prices.work.coordinates[at]
        self.line, self.now, self.at = CoordinateTimeline(), 0.0, 0
        self.begins: list[float] = []
        self.free: dict[int, float] = {}
        self.slow = scripts.prices.hardware.shares.beside - 1
        self.buckets: dict[tuple[int, int], list[Bucket]] = {}
        for bucket in scripts.buckets(self.own.stages):
            self.buckets.setdefault(bucket.at, []).append(bucket)
        self.last = {a.stage: n for n, a in enumerate(actions) if a.to_parameters}
        self.sums: dict[tuple[str, Axes], float] = {}  # of what has been sent, when it ends
        self.latest: tuple[float, CollectiveTime] | None = None  # of ZeRO's
        self.then: list[CollectiveTime] = []
        self.brought = self._gathers() if scripts.prices.work.zero3 else []
        self.units = (jobs for found in self.brought for units in found.values() for jobs in units)
        self.coming = self._begin(0.0) if scripts.overlap.ahead else None
        self._once("ahead", self.own.ahead)

    @property
    def joins(self) -> bool:
        """Whether the update waits for all coordinates."""
        return any(item.place.layer == STEP for item in self.own.after)

    def posted(self, ahead: int) -> float:
        """When the receive of the next action was posted."""
        at = self.at - ahead
        return self.begins[at] if at >= 0 else 0.0

    def wait_until(self, time: float) -> None:
        self.line.idle += max(0.0, time - self.now)
        self.now = max(self.now, time)

    # --- gathers of ZeRO 3

    def _gathers(self) -> list[dict[int, list[tuple[CollectiveTime, ...]]]]:
        """For each action the places of beats, with the units that are brought for each: not what
        is there, which the last unit of the pass before may be."""
        found, gathered = list[dict[int, list[tuple[CollectiveTime, ...]]]](), GatherState[tuple[int, int, str]]()
        for action in self.actions:
            brought: dict[int, list[tuple[CollectiveTime, ...]]] = {}
            script = self.scripts.script(action.stage, action.kind)
            for place, beat in enumerate(script):
                layer = place if action.forward else len(script) - 1 - place
                for unit in beat.units:
                    mine = frozenset((action.stage, layer if "[" in path else -1, path) for path in unit.paths)
                    if gathered.brings(mine, mine if unit.keep else ()):
                        brought.setdefault(place, []).append(unit.jobs)
            found.append(brought)
        return found

    def _begin(self, time: float) -> float | None:
        """Starts the next gather; when it ends."""
        jobs = next(self.units, None)
        return self._send(jobs, time) if jobs is not None else None

    def _send(self, jobs: Sequence[CollectiveTime], time: float) -> float:
        end = time
        for job in jobs:
            begin = self.free.get(job.lane, 0.0)
            begin = time if time > begin else begin
            over = self.free[job.lane] = begin + job.seconds
            self.line.spans.append(TimelineSpan(begin, over, job.lane, _name(job.kind, job.axes)))
            end = over if over > end else end
        return end

    def _wait(self, end: float, layer: str, job: CollectiveTime) -> None:
        """Stands until something has come."""
        if end > self.now:
            self.line.waits[layer, job.kind, job.axes] += end - self.now
            self.now = end

    # --- actions

    def act(self, ready: float, travelled: float) -> None:
        action = self.actions[self.at]
        if ready > self.now:
            exposed = min(ready - self.now, travelled)
            if exposed:
                self.line.waits[BETWEEN, "send", (self.scripts.prices.work.axis,)] += exposed
            self.line.idle += ready - self.now - exposed
            self.now = ready
        self.begins.append(self.now)
        brought = self.brought[self.at] if self.brought else {}
        last = self.at == self.last.get(action.stage)
        for place, beat in enumerate(self.scripts.script(action.stage, action.kind)):
            for jobs in brought.get(place, ()):
                self._open(beat, jobs[0])
            sums = [b for b in self.buckets.get((action.stage, place), ()) if action.to_parameters and (b.each or last)]
            self._compute(beat, max(1, len(sums)))
            for number, bucket in enumerate(sums):
                if number:
                    self._compute(beat, len(sums))
                self._reduce(beat, bucket, last)
        name = f"{action.stage}{action.kind}{action.microbatch}"
        self.line.spans.append(TimelineSpan(self.begins[-1], self.now, -1, name))
        self.at += 1

    def _open(self, beat: Beat, job: CollectiveTime) -> None:
        """A unit is used: it must have come, and the next one begins to travel."""
        if self.coming is None:
            self.coming = self._begin(self.now)
        assert self.coming is not None
        self._wait(self.coming, beat.layer, job)
        self.coming = self._begin(self.now) if self.scripts.overlap.ahead else None

    def _compute(self, beat: Beat, parts: int = 1) -> None:
        """A beat, or one of so many equal parts of it."""
        busy = max(self.free.values(), default=0.0)
        beside = min(max(0.0, busy - self.now), beat.compute / parts) * self.slow
        self.line.beats[beat] += 1 / parts
        if beside:
            self.line.slower[beat.layer] += beside
        self.now += beat.total / parts + beside

    def _reduce(self, beat: Beat, bucket: Bucket, last: bool) -> None:
        if self.latest is not None and self.scripts.overlap.one_sum:
            self._wait(self.latest[0], STEP, self.latest[1])
            self.latest = None
        end = self._send(bucket.first, self.now)
        if bucket.first:
            self.sums[bucket.first[0].kind, bucket.first[0].axes] = end
            self.latest = (end, bucket.first[0]) if bucket.held else self.latest
        if not self.scripts.overlap.reductions and bucket.first:
            self._wait(end, beat.layer, bucket.first[0])
        if last:
            self.then += bucket.then

    # --- once a step

    def settle(self) -> None:
        """All sums of gradients have come."""
        for (kind, axes), end in sorted(self.sums.items(), key=lambda each: each[1]):
            self._wait(end, STEP, CollectiveTime(0.0, 0, kind, axes))
        if self.then:
            self._wait(self._send(self.then, self.now), STEP, self.then[-1])

    def update(self) -> None:
        """The norm, the optimizer, and what brings updated parameters to all."""
        prices = self.scripts.prices
        self._once("after", self.own.after)
        if prices.hardware.step:
            self.line.once["loop"] += prices.hardware.step
            self.now += prices.hardware.step
        for update in self.own.updates:
            seconds = prices.update(update)
            self.line.once[update.kind] += seconds
            self.now += seconds
        jobs = [self.scripts.gather(gather) for gather in self.own.gathers]
        if jobs and self.scripts.overlap.published:
            self._wait(self._send(jobs, self.now), STEP, jobs[-1])
        if jobs and self.scripts.overlap.copies:
            seconds = sum(prices.unpacked(gather) for gather in self.own.gathers)
            self.line.once["copies"] += seconds
            self.now += seconds

    def _once(self, name: str, items: Items) -> None:
        if items:
            beat, begin = self.scripts.once(STEP, items), self.now
            self._compute(beat)
            self.line.spans.append(TimelineSpan(begin, self.now, -1, name))
