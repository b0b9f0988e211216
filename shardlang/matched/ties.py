"""The sums that ranks of several stages make together -> whether all of them come to them in one
order, with as many elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, zip_longest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.matched.read_back.buckets import Joint
from shardlang.matched.report import HELP, places


def prove_ties(sums: Sequence[Sequence[Joint]], sink: Sink) -> None:
    """Reports the first difference between two coordinates (SH462). sums: those of each, in order.

    Two that are in one order between each two coordinates are so between all: the order of a
    coordinate is one line."""
    for one, other in combinations(range(len(sums)), 2):
        ours = [joint for joint in sums[one] if other in joint.coordinates]
        theirs = [joint for joint in sums[other] if one in joint.coordinates]
        for mine, its in zip_longest(ours, theirs):
            if mine == its:
                continue
            said = [f"coordinate {at} sums {_said(joint)}" for joint, at in ((mine, one), (its, other))]
            span, labels = places([(mine.line if mine else None, "summed"), (its.line if its else None, "summed")])
            sink.report("SH462", f"ranks of stages do not sum alike: {said[0]}, and {said[1]}", span, "summed",
                        labels=labels, help=HELP)  # fmt: skip
            break


def _said(joint: Joint | None) -> str:
    many = 0 if joint is None else len(joint.elements)
    return "nothing" if joint is None else f"{sum(joint.elements)} elements of {many} parameter{'s' * (many > 1)}"
