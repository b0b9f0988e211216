"""A coordinate's actions -> text that says what repeats once: `0F0*4 (0F4 0B0)*28 0B28*4`.

`0F4` is stage, kind and microbatch. `X*n` is X n times, each time one microbatch further, `X*n+k` k
further. The runtime's stages.py reads the result."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from shardlang.facts.actions import Action

# What it is but for the microbatch, and the microbatch that it begins with.
Unit = tuple[Any, int]
# How far ahead a repetition is looked for, in units that begin as it does.
_TRIED = 64


def repeats(actions: Sequence[Action]) -> list[str]:
    """The words of a row; none is to be broken over lines but at its spaces."""
    return [_text(unit) for unit in _folded([((a.stage, a.kind), a.microbatch) for a in actions])]


def _folded(units: Sequence[Unit]) -> list[Unit]:
    """The units with each repetition as one."""
    found: list[Unit] = []
    following = _following(units)
    at = 0
    while at < len(units):
        length, count, step = max(_repetitions(units, at, following[at]), default=(0, 1, 0), key=_saved)
        if _saved((length, count, step)) < 2:
            found.append(units[at])
            at += 1
            continue
        base = units[at][1]
        group = tuple((what, part - base) for what, part in _folded(units[at : at + length]))
        found.append(((group, count, step), base))
        at += length * count
    return found


def _following(units: Sequence[Unit]) -> list[list[int]]:
    """For each unit the next ones that are the same but for the microbatch."""
    places: dict[Hashable, list[int]] = {}
    found: list[list[int]] = [[] for _ in units]
    for at in range(len(units) - 1, -1, -1):
        later = places.setdefault(units[at][0], [])
        found[at] = later[: -_TRIED - 1 : -1]
        later.append(at)
    return found


def _repetitions(units: Sequence[Unit], at: int, following: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(length, how often, how many microbatches further) of what repeats from a unit on."""
    known = at
    for other in following:
        if other < known:  # a shorter length repeats that far
            continue
        length, step, same = other - at, units[other][1] - units[at][1], 0
        while other + same < len(units) and units[other + same] == (units[at + same][0], units[at + same][1] + step):
            same += 1
        if same >= length and step > 0:
            known = other + same
            yield length, same // length + 1, step


def _saved(repetition: tuple[int, int, int]) -> int:
    length, count, _ = repetition
    return length * (count - 1)


def _text(unit: Unit) -> str:
    what, base = unit
    if len(what) == 2:
        return f"{what[0]}{what[1]}{base}"
    group, count, step = what
    words = " ".join(_text((inner, part + base)) for inner, part in group)
    plain = len(group) == 1 and len(group[0][0]) == 2
    return f"{words if plain else f'({words})'}*{count}" + (f"+{step}" if step > 1 else "")
