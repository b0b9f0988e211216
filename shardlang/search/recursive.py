"""A strategy with holes -> one that is found by halving the ranks again and again, without a space
of points.

Each factor of the rank count goes to the axis with which a step takes least, and each operator then
takes what saves most along each axis. The other holes take the first values that fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count

from shardlang.plan.strategy.axis_sizes import divisors
from shardlang.search.fit_memory import FittedPoint, Fitting, Short
from shardlang.search.request import SearchRequest
from shardlang.search.space import BUCKETS, Cuts, Open, Point, points
from shardlang.search.splits.ways import Splitting


def halved(fitting: Fitting, splitting: Splitting, wanted: SearchRequest) -> Iterator[FittedPoint | Short | None]:
    """The points of the sizes of axes that halving finds, up to the first that fits of each way to
    split dims."""
    sizes, looked = _sizes(fitting.of, splitting, wanted), count()
    for cuts in splitting(sizes) if sizes is not None else ():
        for point in _points(fitting.of, sizes or {}, cuts):
            wanted.tell(f"{next(looked)} points")
            made = fitting.best(point)
            yield made
            if isinstance(made, FittedPoint):
                break


def _points(of: Open, sizes: Mapping[str, int], cuts: Cuts) -> Iterator[Point]:
    """The points of these sizes, those first that save least memory: the lower levels of ZeRO, then
    fewer microbatches."""
    every = (p for p in points(of, lambda degrees: [cuts] if degrees == sizes else []))
    plain = (point for point in every if point.bucket in (0, BUCKETS[0]))
    yield from sorted(plain, key=lambda point: (point.zero, point.microbatches, point.virtual))


def _sizes(of: Open, splitting: Splitting, wanted: SearchRequest) -> dict[str, int] | None:
    """The sizes of the axes; None where the ranks cannot be laid out so."""
    stages = of.staged
    sizes = {axis.name: axis.size or 1 for axis in of.axes}
    open = [axis.name for axis in of.axes if axis.size is None and axis.name != stages]
    open = open or [axis.name for axis in of.axes if axis.size is None]
    left = of.ranks // math.prod(sizes.values()) if sizes else 1
    if sizes and left * math.prod(sizes.values()) != of.ranks:
        return None
    while left > 1:
        if not open:
            return None
        factor = next(n for n in divisors(left) if n > 1)
        tried = [{**sizes, axis: sizes[axis] * factor} for axis in open]
        wanted.tell(f"{of.ranks // left} ranks")
        times = [_seconds(of, splitting, each, stages) for each in tried]
        sizes = tried[times.index(min(times))]
        left //= factor
    return sizes


def _seconds(of: Open, splitting: Splitting, sizes: Mapping[str, int], stages: str) -> float:
    """The seconds of a microbatch on so many ranks."""
    alone = {**sizes, **({stages: 1} if stages else {})}
    if not of.share(alone):
        return math.inf
    chosen = of.program.in_runs(lambda program: splitting.on(program).chosen(tuple(alone.items())))
    return chosen.seconds if chosen is not None else math.inf
