"""The bytes of layers and of what is around them, and the course of a pipeline -> the most that
each coordinate holds at a time, and the fewest layers that have to be computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def held(stages: Sequence[MemoryEstimate], at: Moment) -> int:
    """The bytes of a coordinate's stages at a moment."""
    alive, there = at
    sizes = zip(stages, alive, there, strict=True)
    return sum(s.always + s.gradient * begun + s.kept * count for s, count, begun in sizes)


def most(stages: Sequence[MemoryEstimate], at: Sequence[Moment]) -> int:
    return max(held(stages, moment) for moment in at)


def summed(stages: Sequence[MemoryEstimate], bucket: int) -> int:
    """The bytes when the last bucket of gradients is summed, which are copied for that; where only
    rows of gradients stay, all of a bucket waits until it is full."""
    gradients, whole = sum(stage.gradient for stage in stages), sum(stage.whole for stage in stages)
    full = min(bucket, whole)
    copies = 2 * full + full * gradients // whole if gradients < whole else full
    return sum(stage.always for stage in stages) + gradients + copies


def fewest(
    stages: Sequence[MemoryEstimate], layers: Sequence[int], less: int, at: Sequence[Moment], limit: int
) -> list[int] | None:
    """How many layers of each stage have to be computed again at least, from the first stage on;
    None where all are not enough. less: bytes that a layer does not keep then."""
    chosen = [0] * len(stages)
    for moment in at:
        over = held(stages, moment) - limit - sum(n * less * c for n, c in zip(chosen, moment[0], strict=True))
        for place in _places(moment):
            if over <= 0:
                break
            each = less * moment[0][place]
            more = min(layers[place] - chosen[place], -(-over // each)) if each > 0 else 0
            chosen[place] += more
            over -= more * each
        if over > 0:
            return None
    return chosen


def _places(at: Moment) -> Iterator[int]:
    """The stages, from those on that keep most microbatches."""
    yield from sorted(range(len(at[0])), key=lambda place: -at[0][place])
