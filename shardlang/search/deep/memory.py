"""The bytes of layers and of what is around them, and the schedule of a pipeline -> a lower bound
on the peak of each coordinate, which leaves out what is there for a moment, and on the layers that
have to be computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from shardlang.facts.actions import Action, alone
from shardlang.frozen.records import dataclass
from shardlang.plan.pipeline.schedules import SCHEDULES

# The microbatches that each stage of a coordinate keeps, and the gradients that it has, at a time.
Moment = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """always: all the time; gradient: from the first backward on; kept: of a microbatch. whole: of
    a gradient before ZeRO cuts it."""

    always: int = 0
    gradient: int = 0
    kept: int = 0
    whole: int = 0

    def times(self, count: int) -> MemoryEstimate:
        return MemoryEstimate(self.always * count, self.gradient * count, self.kept * count, self.whole * count)

    def plus(self, other: MemoryEstimate) -> MemoryEstimate:
        sizes = self.always + other.always, self.gradient + other.gradient
        return MemoryEstimate(*sizes, self.kept + other.kept, self.whole + other.whole)


@lru_cache(maxsize=4096)
def moments(schedule: str, stages: int, size: int, count: int, rank: int) -> Sequence[Moment]:
    """Those of a coordinate at which most can be there: whatever is there at another is there at
    one of them too."""
    if size == 1:
        return _moments(alone(min(count, 2)))
    rounds = max(1, count // size)
    few = count if schedule == "gpipe" else min(count, 2 * size) if stages == size else count // rounds * min(rounds, 2)
    known = SCHEDULES[schedule]
    return _moments(known.line(stages, size, few if known.fits(stages, size, few) else count, rank))


def _moments(line: Sequence[Action]) -> Sequence[Moment]:
    place = {stage: at for at, stage in enumerate(sorted({action.stage for action in line}))}
    alive, there = [0] * len(place), [0] * len(place)
    found: dict[Moment, None] = {}
    for action in line:
        at = place[action.stage]
        if action.forward:
            alive[at] += 1
            continue
        found[tuple(alive), tuple(there)] = None
        there[at] = 1
        alive[at] -= action.to_parameters
    most = dict[Moment, None]()
    for one in sorted(found, key=lambda one: -sum(one[0]) - sum(one[1])):
        if not any(_within(one, other) for other in most):
            most[one] = None
    return [one for one in found if one in most]


def _within(one: Moment, other: Moment) -> bool:
    return all(a <= b for mine, more in zip(one, other, strict=True) for a, b in zip(mine, more, strict=True))


@dataclass(frozen=True, slots=True)
class CoordinateMemory:
    """The bytes of a coordinate's stages, how many layers each has, and the moments at which most
    can be there."""

    stages: Sequence[MemoryEstimate]
    layers: Sequence[int]
    moments: Sequence[Moment]

    @property
    def most(self) -> int:
        return max(map(self._held, self.moments))

    def _held(self, at: Moment) -> int:
        sizes = zip(self.stages, *at, strict=True)
        return sum(s.always + s.gradient * begun + s.kept * count for s, count, begun in sizes)

    def summed(self, bucket: int) -> int:
        """The bytes when the last bucket of gradients is summed, which are copied for that; where
        only rows of gradients stay, all of a bucket waits until it is full."""
        gradients, whole = sum(stage.gradient for stage in self.stages), sum(stage.whole for stage in self.stages)
        full = min(bucket, whole)
        copies = 2 * full + full * gradients // whole if gradients < whole else full
        return sum(stage.always for stage in self.stages) + gradients + copies

    def again(self, less: int, counts: Sequence[int]) -> CoordinateMemory:
        """With so many layers of each stage computed again, each of which keeps `less` less."""
        pairs = zip(self.stages, counts, strict=True)
        return replace(self, stages=[replace(s, kept=s.kept - less * n) for s, n in pairs])

    def fewest(self, less: int, limit: int) -> list[int] | None:
        """How many layers of each stage have to be computed again at least, from the first stage
        on; None where all are not enough. less: bytes that a layer does not keep then."""
        chosen = [0] * len(self.stages)
        for moment in self.moments:
            alive, _ = moment
            over = self._held(moment) - limit - sum(n * less * c for n, c in zip(chosen, alive, strict=True))
            # Those first that keep most microbatches.
            for place in sorted(range(len(alive)), key=lambda place: -alive[place]):
                if over <= 0:
                    break
                each = less * alive[place]
                more = min(self.layers[place] - chosen[place], -(-over // each)) if each > 0 else 0
                chosen[place] += more
                over -= more * each
            if over > 0:
                return None
        return chosen
