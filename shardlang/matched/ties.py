"""The sums that ranks of several stages make together -> whether all of them come to them in one
order, with as many elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import combinations, zip_longest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.matched.lines import AxisGroup, Line, lines_of
from shardlang.matched.read_back.program import Read
from shardlang.matched.read_back.settings import parameter
from shardlang.matched.report import report


@dataclass(frozen=True, slots=True)
class Joint:
    """A sum of ranks of several stages: over axes of each, at these coordinates."""

    coordinates: tuple[int, ...]
    group: AxisGroup
    elements: tuple[int, ...]
    line: Line = field(compare=False)


def joint(read: Read) -> Sequence[Sequence[Joint]]:
    """The sums of each coordinate with others, parameter by parameter. Which of them come in one
    bucket follows from that order, as only those that the same stages use share one."""
    users, found = dict[str, set[int]](), list[list[Joint]]([] for _ in {*read.coordinates})
    for coordinate, stage in zip(read.coordinates, read.stages, strict=True):
        for path in stage.parameters:
            users.setdefault(path, set()).add(coordinate)
    shared = [path for path in read.declared if len(users.get(path, ())) > 1]
    for path, declared in ((path, read.declared[path]) for path in shared if read.declared[path].learns):
        line, *_ = lines_of(parameter(read, declared))
        for coordinate in users[path]:
            found[coordinate].append(Joint(tuple(sorted(users[path])), line.group, (declared.local.most,), line))
    return found


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
            places = [(joint.line.span, "summed") for joint in (mine, its) if joint is not None]
            report(sink, "SH462", f"ranks of stages do not sum alike: {said[0]}, and {said[1]}", places)
            break


def _said(joint: Joint | None) -> str:
    many = 0 if joint is None else len(joint.elements)
    return "nothing" if joint is None else f"{sum(joint.elements)} elements of {many} parameter{'s' * (many > 1)}"
