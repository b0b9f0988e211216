"""Schedules of a pipeline: (stages, coordinates, microbatches) -> what each coordinate does, in
order.

Pure integers; the orders are those of torch.distributed.pipelining, from the papers named below.
`SCHEDULES` says what a schedule needs; whether a list of actions can run at all by actions.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field

from shardlang.facts.actions import Action
from shardlang.frozen.records import dataclass
from shardlang.plan.strategy.axis_sizes import divisors

Actions = tuple[tuple[Action, ...], ...]


@dataclass
class _ActionRow:
    """One coordinate's actions as they are written: stages and kinds take microbatches in turn."""

    actions: list[Action] = field(default_factory=list)
    done: Counter[tuple[int, str]] = field(default_factory=Counter)
    waiting: list[Action] = field(default_factory=list)  # W of an I that was written

    def add(self, stage: int, kind: str) -> None:
        counted = "I" if kind == "B" else kind
        action = Action(stage, kind, self.done[stage, counted])
        self.done[stage, counted] += 1
        self.actions.append(action)
        if kind == "I":
            self.waiting.append(Action(stage, "W", action.microbatch))

    def run(self, times: int, *steps: tuple[int, str]) -> None:
        """These steps in turn, so many times."""
        for stage, kind in steps * times:
            self.add(stage, kind)

    def weights(self) -> None:
        """The oldest W that waits, if any does."""
        if self.waiting:
            self.actions.append(self.waiting.pop(0))


def looped(stages: int, coordinates: int) -> tuple[int, ...]:
    """Stage -> coordinate: 0, 1, .., n-1, 0, 1, .."""
    return tuple(s % coordinates for s in range(stages))


def vee(stages: int, coordinates: int) -> tuple[int, ...]:
    """Stage -> coordinate: 0, 1, .., n-1, n-1, .., 1, 0: first and last stage share one."""
    return tuple(s if s < coordinates else stages - 1 - s for s in range(stages))


def gpipe(stages: int, coordinates: int, microbatches: int, rank: int) -> Sequence[Action]:
    """All forward, then all backward (Huang et al., 2019)."""
    return [Action(rank, kind, m) for kind in "FB" for m in range(microbatches)]


def one_f_one_b(stages: int, coordinates: int, microbatches: int, rank: int) -> Sequence[Action]:
    """Forward up to the first gradient, then backward after each (Narayanan et al., 2019)."""
    line, ahead = _ActionRow(), min(microbatches, stages - rank)
    line.run(ahead, (rank, "F"))
    line.run(microbatches - ahead, (rank, "B"), (rank, "F"))
    line.run(ahead, (rank, "B"))
    return line.actions


def interleaved_1f1b(stages: int, coordinates: int, microbatches: int, rank: int) -> Sequence[Action]:
    """Several stages a coordinate, taken in turn round by round (Narayanan et al., 2021)."""
    return _interleaved(stages, coordinates, microbatches, rank, 2, False)


def zero_bubble(stages: int, coordinates: int, microbatches: int, rank: int) -> Sequence[Action]:
    """Interleaved 1F1B, with parameters' gradients in the bubble (ZB1P; Qi et al., 2023)."""
    return _interleaved(stages, coordinates, microbatches, rank, 1, True)


def _interleaved(stages: int, coordinates: int, microbatches: int, rank: int, hops: int,
                 split: bool) -> Sequence[Action]:  # fmt: skip
    """hops: extra forwards for each coordinate up to the last. split: I and W in place of B."""
    virtual = stages // coordinates
    total = virtual * microbatches
    each = microbatches // rounds(coordinates, microbatches)
    ahead = min((virtual - 1) * each + hops * (coordinates - 1 - rank), total)
    line = _ActionRow()
    for at in range(total + ahead):
        if at < total:
            line.add(at // each % virtual * coordinates + rank, "F")
        if at < ahead:
            continue
        line.add((virtual - 1 - (at - ahead) // each % virtual) * coordinates + rank, "I" if split else "B")
        if split and at - ahead >= rank:
            line.weights()
    return [*line.actions, *line.waiting]


def rounds(coordinates: int, microbatches: int) -> int:
    """The rounds of an interleaved schedule: equal, with at least one microbatch a coordinate."""
    return max(1, microbatches // coordinates)


def zbv(stages: int, coordinates: int, microbatches: int, rank: int) -> Sequence[Action]:
    """Two stages a coordinate in a V, parameters' gradients apart (ZB-V; Qi et al., 2023)."""
    count = max(2 * coordinates - 1, microbatches)  # enough to fill the pipeline; what is too many is left out
    line, down, up = _ActionRow(), rank, stages - 1 - rank

    def whole(stage: int) -> None:
        line.add(stage, "I")
        line.actions.append(line.waiting.pop())

    line.run(2 * (coordinates - rank) - 1, (down, "F"))
    line.run(rank, (up, "F"), (down, "F"))
    for _ in range(coordinates - rank):
        line.add(up, "F")
        whole(up)
    while line.done[up, "F"] < line.done[down, "F"] or line.done[down, "F"] < count:
        if line.done[down, "F"] < count:
            line.add(down, "F")
        whole(down)
        line.add(up, "F")
        whole(up)
    line.run(rank, (down, "I"), (up, "I"))
    late = [a for a in line.waiting if a.stage == up]
    early = [a for a in line.waiting if a.stage == down]
    for _ in range(coordinates - rank):
        line.add(down, "I")
        early.append(line.waiting.pop())
        line.actions.append(early.pop(0))
    return [a for a in (*line.actions, *late, *early) if a.microbatch < microbatches]


def dualpipe_v(stages: int, coordinates: int, microbatches: int, rank: int) -> Sequence[Action]:
    """Two stages a coordinate in a V, forward beside backward (DeepSeek-V3, 2024, cut in half)."""
    line, down, up, left = _ActionRow(), rank, stages - 1 - rank, coordinates - rank - 1
    line.run(2 * left, (down, "F"))
    line.run(rank + 1, (down, "F"), (up, "F"))
    for _ in range(left):
        line.add(up, "I")
        line.weights()
        line.add(up, "F")
    line.run(microbatches - 2 * coordinates + rank + 1, (down, "F"), (up, "B"), (up, "F"), (down, "B"))
    line.run(left, (up, "B"), (up, "F"), (down, "B"))
    half, kind = (rank + 1) // 2, "B"
    for i in range(rank + 1):
        kind = "I" if i == half and rank % 2 else kind
        line.add(up, kind)
        kind = "I" if i == half else kind
        line.add(down, kind)
    for _ in range(left):
        line.weights()
        line.add(down, kind)
    return [*line.actions, *line.waiting]


@dataclass(frozen=True)
class ScheduleKind:
    """A schedule that a strategy may name.

    line: the actions of one of the coordinates, the last number. virtual: stages a coordinate,
    (least, most). fits: whether it can be made of so many microbatches. needs: what it asks of
    them, as text of (stages, coordinates)."""

    line: Callable[[int, int, int, int], Sequence[Action]]
    virtual: tuple[int, int]
    place: Callable[[int, int], tuple[int, ...]] = looped
    fits: Callable[[int, int, int], bool] = lambda stages, coordinates, microbatches: True
    needs: Callable[[int, int], str] = lambda stages, coordinates: ""

    def make(self, stages: int, coordinates: int, microbatches: int) -> Actions:
        """The actions of each coordinate, in order."""
        return tuple(tuple(self.line(stages, coordinates, microbatches, rank)) for rank in range(coordinates))

    def takes(self, virtual: int) -> bool:
        """Whether it can have so many stages a coordinate."""
        return self.virtual[0] <= virtual <= self.virtual[1]


def _enough(stages: int, coordinates: int, microbatches: int) -> bool:
    return microbatches >= stages


def _enough_text(stages: int, coordinates: int) -> str:
    return f"at least {stages} microbatches, one a stage"


def divided(stages: int, coordinates: int, microbatches: int) -> bool:
    """Whether microbatches divide into rounds."""
    return microbatches % rounds(coordinates, microbatches) == 0


def _rounds_text(stages: int, coordinates: int) -> str:
    return f"as many microbatches in each round, at least {coordinates}"


ANY = 1 << 30
_NEARBY = 1000  # how far from the number given others are offered
SCHEDULES: dict[str, ScheduleKind] = {
    "gpipe": ScheduleKind(gpipe, (1, 1)),
    "1f1b": ScheduleKind(one_f_one_b, (1, 1), fits=_enough, needs=_enough_text),
    "interleaved_1f1b": ScheduleKind(interleaved_1f1b, (1, ANY), fits=divided, needs=_rounds_text),
    "zero_bubble": ScheduleKind(zero_bubble, (1, ANY), fits=divided, needs=_rounds_text),
    "zbv": ScheduleKind(zbv, (2, 2), vee),
    "dualpipe_v": ScheduleKind(dualpipe_v, (2, 2), vee, _enough, _enough_text),
}


def fitting(schedule: ScheduleKind, stages: int, coordinates: int, near: int, share: int = 0) -> list[int]:
    """The four fitting numbers of microbatches nearest to `near` that divide `share`, ascending."""
    nearby = range(max(1, near - _NEARBY), near + stages + _NEARBY)
    choices = {*nearby, *(divisors(share) if share else ())}
    good = [m for m in choices if schedule.fits(stages, coordinates, m) and share % m == 0]
    return sorted(sorted(good, key=lambda m: (abs(m - near), m))[:4])
