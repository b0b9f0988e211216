"""`split auto`: which dims are split over which axes.

Few ways are all points of the space. Where there are many, they are found by steps: from no dim on,
the dim and axes that save most are added, as long as anything is saved. That is done once for the
axes that have ranks, on few layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from itertools import product

from shardlang.cost.planned import work
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.planner import laid_out
from shardlang.records import dataclass
from shardlang.search.filled import filled
from shardlang.search.space import Open, Point, Seconds, Splits, splittable

# More ways than these are not all tried.
FEW = 64
Way = tuple[int, str, tuple[tuple[str, bool], ...]]


@dataclass
class Splitting:
    """few: the strategy on a program with few layers, without stages. plans: how many were made."""

    of: Open
    few: Open
    seconds: Seconds
    known: dict[tuple[str, ...], Splits] = field(default_factory=dict)
    plans: int = 0

    def __call__(self, degrees: dict[str, int]) -> Sequence[Splits]:
        """The ways to fill `split auto` on axes of such sizes."""
        options = [[(group, dim, uses) for uses in ways] for group, dim, ways in splittable(self.of, degrees)]
        if math.prod(1 + len(ways) for ways in options) <= FEW:
            return [tuple(one for one in each if one[2]) for each in product(*([(0, "", ()), *o] for o in options))]
        legal = {way for ways in options for way in ways}
        found = self.found({axis: 2 for axis, size in degrees.items() if size > 1})
        return [tuple(way for way in found if way in legal)]

    def found(self, degrees: dict[str, int]) -> Splits:
        """The ways that are found by steps; of several axes, first those of each by itself."""
        axes = {axis for _, _, ways in splittable(self.of, degrees) for uses in ways for axis, _ in uses}
        degrees = {axis: size for axis, size in degrees.items() if axis in axes}
        key = tuple(degrees)
        if key not in self.known:
            start: dict[tuple[int, str], Way] = {}
            for axis in key if len(key) > 1 else ():
                for group, dim, uses in self.found({axis: degrees[axis]}):
                    before = start[group, dim][2] if (group, dim) in start else ()
                    start[group, dim] = group, dim, (*before, *((a, bool(before)) for a, _ in uses))
            self.known[key] = self._steps(degrees, tuple(start.values()))
        return self.known[key]

    def _steps(self, degrees: dict[str, int], best: Splits) -> Splits:
        least, moved = self._time(degrees, best), True
        options = list(splittable(self.few, degrees))
        while moved:
            moved, tried = False, list[tuple[float, Splits]]()
            for group, dim, ways in options:
                there = [way for way in best if way[:2] == (group, dim)]
                if there and len(degrees) == 1:
                    continue
                tried += self._added(degrees, tuple(w for w in best if w not in there), group, dim, ways)
            if tried and min(tried)[0] < least:
                (least, best), moved = min(tried), len(degrees) == 1
        return best

    def _added(
        self, degrees: dict[str, int], rest: Splits, group: int, dim: str, ways: Sequence[tuple[tuple[str, bool], ...]]
    ) -> list[tuple[float, Splits]]:
        """With one more dim; its axes yield only where they otherwise may not be there."""
        found = list[tuple[float, Splits]]()
        for uses in ways:
            plain = tuple(axis for axis, _ in uses)
            if any(tuple(a for a, _ in made[-1][2]) == plain for _, made in found):
                continue
            made = (*rest, (group, dim, uses))
            time = self._time(degrees, made)
            if time < math.inf:
                found.append((time, made))
        return found

    def _time(self, degrees: dict[str, int], splits: Splits) -> float:
        sizes = tuple((axis.name, degrees.get(axis.name, 1)) for axis in self.few.axes)
        point = Point(sizes, zero=((0, False),) * len(self.few.zeros), splits=splits)
        self.plans += 1
        ranks = math.prod(size for _, size in sizes)
        plan = laid_out(self.few.program, filled(self.few, point, "few"), ranks, Sink())
        return self.seconds(work(plan)) if plan is not None else math.inf
