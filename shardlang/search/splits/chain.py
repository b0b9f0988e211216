"""Choices in the order of their operators -> the options that take least and fit, by dynamic
programming.

A state is what later conversions depend on: the options whose values are still to be read, and the
bytes that all so far keep, in 256 steps. On a chain, in which each operator reads the one before,
no others take less; elsewhere only the best states are kept."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.frozen.records import dataclass
from shardlang.search.splits.choices import Choices, Handed

# Steps of the bytes, and states that are kept at an operator.
STEPS, STATES = 256, 300


@dataclass(frozen=True, slots=True)
class _State:
    """The options so far, with their seconds and the bytes that they keep."""

    seconds: float
    kept: int
    picks: tuple[int, ...]


def in_sequence(of: Choices, limit: int | None) -> tuple[int, ...]:
    """The options. limit: the bytes that they may keep; where none fits, those that keep least."""
    free = _run(of, None)
    return free if limit is None or of.kept(free) <= limit else _run(of, limit)


def _run(of: Choices, limit: int | None) -> tuple[int, ...]:
    step = max(1, -(-limit // STEPS)) if limit is not None else 0
    touched: list[list[Handed]] = [[] for _ in of.choices]
    for value in of.handed:
        for at in {value.producer, *(reader for reader, _ in value.readers)}:
            touched[at].append(value)
    states = [_State(0.0, 0, ())]
    for at, choice in enumerate(of.choices):
        open = _open(of, at)
        best: dict[tuple[int, ...], _State] = {}
        for state in states:
            before = [_known(value, state.picks) for value in touched[at]]
            for option, (own, bytes) in enumerate(zip(choice.own, choice.kept, strict=True)):
                picks = (*state.picks, option)
                more = sum(_known(value, picks) for value in touched[at]) - sum(before)
                made = _State(state.seconds + own + more, state.kept + bytes, picks)
                key = (made.kept // step if step else 0, *[picks[n] for n in open])
                known = best.get(key)
                if known is None or (made.seconds, made.kept) < (known.seconds, known.kept):
                    best[key] = made
        states = _best(list(best.values()), limit)
    return states[0].picks


def _open(of: Choices, at: int) -> Sequence[int]:
    """The choices so far of which something is yet to be read or made."""
    found = set[int]()
    for value in of.handed:
        mine = {value.producer, *(reader for reader, _ in value.readers)}
        if max(mine) > at:
            found |= {n for n in mine if n <= at}
    return sorted(found)


def _known(value: Handed, picks: Sequence[int]) -> float:
    """The seconds of a value's conversions, as far as its maker and its readers have chosen."""
    if value.producer >= len(picks):
        return 0.0
    source = value.made[picks[value.producer]]
    needed = {forms[picks[reader]] for reader, forms in value.readers if reader < len(picks)}
    return value.times * sum(value.seconds[source, form] for form in sorted(needed))


def _best(states: list[_State], limit: int | None) -> list[_State]:
    """The states that fit, the fastest first; the one that keeps least where none does."""
    fits = [state for state in states if limit is None or state.kept <= limit]
    if not fits:
        return [min(states, key=lambda state: (state.kept, state.seconds))]
    return sorted(fits, key=lambda state: (state.seconds, state.kept))[:STATES]
