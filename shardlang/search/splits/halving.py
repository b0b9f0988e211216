"""Choices along one axis -> what saves most at each operator, from first to last: for programs that
are too large for anything else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardlang.search.splits.choices import Choices, Handed

SWEEPS = 2


def greedily(of: Choices) -> tuple[int, ...]:
    """The options: each operator takes the one with which it and the conversion of what it reads
    take least; then each once more, when its readers are known too."""
    reads: list[list[tuple[Handed, tuple[int, ...]]]] = [[] for _ in of.choices]
    makes: list[list[Handed]] = [[] for _ in of.choices]
    for value in of.handed:
        makes[value.producer].append(value)
        for reader, forms in value.readers:
            reads[reader].append((value, forms))
    picks = [-1] * len(of.choices)
    for _ in range(1 + SWEEPS):
        before = list(picks)
        for at, choice in enumerate(of.choices):
            costs = [
                own + _around(picks, reads[at], makes[at], at, option) for option, own in enumerate(choice.own)
            ]  # fmt: skip
            picks[at] = min(range(len(costs)), key=lambda option: (costs[option], option))
        if picks == before:
            break
    return tuple(picks)


def _around(
    picks: Sequence[int], reads: Sequence[tuple[Handed, tuple[int, ...]]], makes: Sequence[Handed], at: int, option: int
) -> float:
    """The seconds of the conversions around an operator, as far as its neighbours have chosen."""
    total = 0.0
    for value, forms in reads:
        source = option if value.producer == at else picks[value.producer]
        if source >= 0:
            total += value.times * value.seconds[value.made[source], forms[option]]
    for value in makes:
        known = [forms[option if reader == at else picks[reader]] for reader, forms in value.readers
                 if reader == at or picks[reader] >= 0]  # fmt: skip
        total += value.times * sum(value.seconds[value.made[option], form] for form in dict.fromkeys(known))
    return min(total, math.inf)
