"""A point of a deep program -> a lower bound on the seconds of its step, in closed form: no
simulation undercuts it.

A coordinate begins when the stages before have passed a microbatch on, does its own work, and is
done when those stages have gone back with the last one. Sums of gradients and gathers that nothing
can hide are added. All of that is read off a profile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from shardlang.cost.prices import Prices
from shardlang.cost.scripts import PIECES, Scripts
from shardlang.cost.work import AGAIN, FORWARD, INPUTS, WEIGHTS, Segment
from shardlang.frozen.records import dataclass

# Sums of bytes are priced as a part of so many of them: then what each costs beside its bytes,
# which larger buckets save, is not counted.
MANY = 1024


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """Segments that follow each other. forward, backward: seconds that a rank computes, and waits
    for collectives in line. gathers: seconds of those of ZeRO 3; first: of the longest of them.
    begins: seconds of backward before the first sum can start. sums: of ZeRO's, that are waited
    for; others: of all others."""

    forward: float = 0.0
    backward: float = 0.0
    gathers: float = 0.0
    first: float = 0.0
    begins: float = 0.0
    sums: float = 0.0
    others: float = 0.0

    def times(self, count: int) -> SegmentCost:
        """So many of the same."""
        if not count:
            return SegmentCost()
        forward, backward, gathers = self.forward * count, self.backward * count, self.gathers * count
        return SegmentCost(forward, backward, gathers, self.first, self.begins, self.sums * count, self.others * count)

    def then(self, later: SegmentCost) -> SegmentCost:
        """With what comes behind it in forward, and before it in backward."""
        return SegmentCost(
            self.forward + later.forward, self.backward + later.backward, self.gathers + later.gathers,
            max(self.first, later.first), later.begins or self.begins, self.sums + later.sums,
            self.others + later.others,
        )  # fmt: skip

    @property
    def onward(self) -> float:
        """Seconds of a forward: gathers travel one ahead."""
        return max(self.forward, self.gathers - self.first)

    def back(self, summing: bool) -> float:
        """Seconds of a backward. summing: ZeRO's sums are made in it, one at a time, by the links
        of its gathers."""
        travels = self.gathers - self.first
        if not summing:
            return max(self.backward, travels)
        return max(self.backward, self.begins + self.sums, travels + self.sums)


def cost_of(scripts: Scripts, forward: Sequence[Segment], backward: Sequence[Segment]) -> SegmentCost:
    """The seconds of a profile's run on a mesh."""
    made = SegmentCost()
    for segment in forward:
        beat = scripts.beat(segment.layer, segment.items, (FORWARD,), segment.gathers)
        each = [sum(job.seconds for job in unit.jobs) for unit in beat.units if not unit.keep]
        made = made.then(SegmentCost(beat.total, 0.0, sum(each), max(each, default=0.0)))
    for segment in backward:
        beat = scripts.beat(segment.layer, segment.items, (AGAIN, INPUTS, WEIGHTS), segment.gathers)
        held, others = _sums(scripts.prices, segment)
        begins = beat.total / PIECES if segment.reductions else 0.0
        made = made.then(SegmentCost(0.0, beat.total, begins=begins, sums=held, others=others))
    return made


def _sums(prices: Prices, segment: Segment) -> tuple[float, float]:
    """Seconds of ZeRO's sums, and of others, on the lane that has most."""
    totals: dict[tuple[bool, int, str, tuple[str, ...]], int] = {}
    for reduction in segment.reductions:
        held = any(kind == "reduce_scatter" for kind, _, _ in reduction.parts)
        for kind, axes, size in reduction.parts:
            key = held and kind == "reduce_scatter", reduction.mesh, kind, axes
            totals[key] = totals.get(key, 0) + size
    lanes: tuple[dict[int, float], dict[int, float]] = {}, {}
    for (waits, mesh, kind, axes), size in totals.items():
        lane, seconds = prices.placing(mesh, axes).level, prices.collective(kind, mesh, axes, size * MANY) / MANY
        lanes[not waits][lane] = lanes[not waits].get(lane, 0.0) + seconds
    return max(lanes[0].values(), default=0.0), max(lanes[1].values(), default=0.0)


@dataclass(frozen=True, slots=True)
class PipelineBound:
    """The course of a pipeline. size: coordinates; runs: of each stage; count: microbatches;
    round: how many of them a stage takes in turn; known: whether the schedule's order is. sent:
    seconds of a value between stages."""

    size: int
    runs: Sequence[SegmentCost]
    count: int
    round: int
    known: bool
    sent: float
    each: bool = False


def bound(of: PipelineBound, again: Sequence[float], update: float) -> float:
    """Seconds that the step takes at least. again: seconds that each stage computes once more in a
    backward. update: of what comes after all sums."""
    stages, size = len(of.runs), of.size
    forward = [run.onward for run in of.runs]
    usual = [run.back(of.each) + more for run, more in zip(of.runs, again, strict=True)]
    final = [run.back(True) + more for run, more in zip(of.runs, again, strict=True)]
    sent = of.sent if size > 1 else 0.0
    reached = [0.0, *accumulate(seconds + sent for seconds in forward)]
    left = [0.0, *accumulate(seconds + sent for seconds in final)]
    most = 0.0
    for at in range(size):
        mine = range(at, stages, size)
        own = sum(of.count * forward[s] + (of.count - 1) * usual[s] + final[s] for s in mine)
        if not of.known:
            most = max(most, own)
            continue
        run = of.runs[at]
        tail = max(0.0, run.begins + run.others - run.backward)
        begins, ends, before, behind = 0.0, tail, 0.0, 0.0
        for stage in mine:
            begins = max(begins, reached[stage] - before)
            ends = max(ends, left[stage + 1] - sent - behind - final[stage])
            before += of.round * forward[stage]
            behind += (of.round - 1) * usual[stage] + final[stage]
        most = max(most, begins + own + ends)
    return most + update
