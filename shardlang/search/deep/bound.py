"""A pipeline of slices of a flat plan -> a lower bound on the seconds of its step: no simulation
undercuts it.

A coordinate begins when the stages before have passed a microbatch on, does its own work, and is
done when those stages have gone back with the last one. Sums of gradients and gathers that nothing
can hide are added."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

from shardlang.cost.prices import Prices
from shardlang.cost.scripts import PIECES, Scripts
from shardlang.cost.work import AGAIN, FORWARD, INPUTS, WEIGHTS, Segment
from shardlang.frozen.records import dataclass
from shardlang.search.pipelines import Pipe

# Sums of bytes are priced as a part of so many of them: then what each costs beside its bytes,
# which larger buckets save, is not counted.
MANY = 1024
# Schedules whose order the bound knows.
KNOWN = ("", "gpipe", "1f1b", "interleaved_1f1b")


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """Segments that follow each other. forward, backward: seconds that a rank computes, and waits
    for collectives in line. gathers: seconds of those of ZeRO 3; first: of the longest of them.
    begins: seconds of backward before the first sum can start. sums: of ZeRO's, each of which is
    waited for when the next bucket begins; held: bytes of their gradients; others: seconds of all
    other sums."""

    forward: float = 0.0
    backward: float = 0.0
    gathers: float = 0.0
    first: float = 0.0
    begins: float = 0.0
    sums: float = 0.0
    held: int = 0
    others: float = 0.0

    def times(self, count: int) -> SegmentCost:
        """So many of the same."""
        return SegmentCost(
            self.forward * count, self.backward * count, self.gathers * count, self.first, begins=self.begins,
            sums=self.sums * count, held=self.held * count, others=self.others * count,
        )  # fmt: skip

    def then(self, later: SegmentCost) -> SegmentCost:
        """With what comes behind it in forward, and before it in backward."""
        return SegmentCost(
            self.forward + later.forward, self.backward + later.backward, self.gathers + later.gathers,
            max(self.first, later.first), begins=later.begins or self.begins, sums=self.sums + later.sums,
            held=self.held + later.held, others=self.others + later.others,
        )  # fmt: skip

    @property
    def onward(self) -> float:
        """Seconds of a forward: gathers travel one ahead."""
        return max(self.forward, self.gathers - self.first)

    def back(self, bucket: float = math.inf) -> float:
        """Seconds of a backward. bucket: bytes of gradients whose sum is not waited for in it."""
        waited = self.sums * max(0.0, 1 - bucket / self.held) if self.held else 0.0
        return max(self.backward, self.gathers - self.first, self.begins + waited if waited else 0.0)

    def tail(self, bucket: int) -> float:
        """Seconds of sums that are left when the last backward is over."""
        return max(0.0, self.begins + max(self.sums, self.others) - self.back(bucket))


def cost_of(scripts: Scripts, forward: Segment, backward: Segment) -> SegmentCost:
    """The seconds of both passes of a segment."""
    there = scripts.beat(forward.layer, forward.items, (FORWARD,), forward.gathers)
    back = scripts.beat(backward.layer, backward.items, (AGAIN, INPUTS, WEIGHTS), backward.gathers)
    each = [sum(job.seconds for job in unit.jobs) for unit in there.units if not unit.keep]
    sums, others = _sums(scripts.prices, backward)
    begins = back.total / PIECES if backward.reductions else 0.0
    held = sum(r.size for r in backward.reductions if any(kind == "reduce_scatter" for kind, _, _ in r.parts))
    return SegmentCost(
        there.total, back.total, sum(each), max(each, default=0.0), begins=begins, sums=sums, held=held, others=others
    )


def in_line(costs: Iterable[SegmentCost]) -> SegmentCost:
    """Those of segments that follow each other."""
    made = SegmentCost()
    for cost, some in groupby(costs):
        made = made.then(cost.times(sum(1 for _ in some)))
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


def bound(of: Pipe, runs: Sequence[SegmentCost], again: Sequence[float], sent: float, bucket: int) -> float:
    """Seconds that the passes of a step take at least. runs: of each stage; again: seconds that
    each computes once more in a backward. sent: seconds of a value between stages."""
    forward = [run.onward for run in runs]
    back = [run.back() + more for run, more in zip(runs, again, strict=True)]
    final = [run.back(bucket) + more for run, more in zip(runs, again, strict=True)]
    reached = [0.0, *accumulate(seconds + sent for seconds in forward)]
    left = [0.0, *accumulate(seconds + sent for seconds in final)]
    # So many microbatches a stage takes in turn.
    turn, most = of.count // max(1, of.count // of.size), 0.0
    for at, mine in enumerate(of.on):
        own = sum(of.count * forward[s] + (of.count - 1) * back[s] + final[s] for s in mine)
        begins, ends, before, behind = 0.0, runs[at].tail(bucket), 0.0, 0.0
        for stage in mine if of.schedule in KNOWN else ():
            begins = max(begins, reached[stage] - before)
            ends = max(ends, left[stage + 1] - sent - behind - final[stage])
            before += turn * forward[stage]
            behind += (turn - 1) * back[stage] + final[stage]
        most = max(most, begins + own + ends)
    return most


def linked(of: Pipe, runs: Sequence[SegmentCost]) -> float:
    """Seconds in which the links of ZeRO are busy, where its sums are made in every microbatch."""
    return max(of.count * sum(2 * (runs[s].gathers - runs[s].first) + runs[s].sums for s in mine) for mine in of.on)
