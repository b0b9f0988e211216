"""Measured points -> seconds in between, by straight lines over logarithms of both. Beyond the last
point the last line goes on, at most as steep as work grows: noise of the last point would grow with
the size. Below the first point its time holds: that is latency."""

from __future__ import annotations

import math
from bisect import bisect_right

from shardlang.frozen.records import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds (`ys`) at sizes (`xs`, ascending), two or more, as logarithms. steepest: the power of
    the size by which seconds can grow at most, 2 for attention over lengths."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    steepest: float = 1.0

    def at(self, x: float) -> float:
        """Seconds at a size."""
        size = max(math.log(x), self.xs[0]) if x > 0 else self.xs[0]
        inside = min(size, self.xs[-1])
        at, share = _between(self.xs, inside)
        rise = self.ys[at + 1] - self.ys[at]
        slope = min(max(0.0, rise / (self.xs[at + 1] - self.xs[at])), self.steepest)
        return math.exp(self.ys[at] + rise * share + slope * (size - inside))


@dataclass(frozen=True, slots=True)
class Grid:
    """Seconds at each of three sizes: `axes` ascending, two or more each; `values` row-major; all
    as logarithms."""

    axes: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def at(self, *sizes: float) -> float:
        """Seconds at a point: the straight line along each axis, one after another."""
        wanted = [max(math.log(size), axis[0]) for size, axis in zip(sizes, self.axes, strict=True)]
        inside = [min(x, axis[-1]) for x, axis in zip(wanted, self.axes, strict=True)]
        found = self._inside(inside)
        for n, (x, edge, axis) in enumerate(zip(wanted, inside, self.axes, strict=True)):
            if x > edge:
                low, high = axis[-2:]
                ends = [self._inside([*inside[:n], end, *inside[n + 1 :]]) for end in (low, high)]
                found += min(max(0.0, (ends[1] - ends[0]) / (high - low)), 1.0) * (x - edge)
        return math.exp(found)

    def _inside(self, point: list[float]) -> float:
        corners = [(0, 1.0)]
        for axis, x in zip(self.axes, point, strict=True):
            at, share = _between(axis, x)
            ends = ((at, 1 - share), (at + 1, share))
            corners = [(place * len(axis) + i, weight * part) for place, weight in corners for i, part in ends]
        return sum(self.values[place] * weight for place, weight in corners)


def curve(points: list[tuple[float, float]], steepest: float = 1.0) -> Curve:
    """The curve through (size, seconds)."""
    return Curve(tuple(math.log(x) for x, _ in points), tuple(math.log(y) for _, y in points), steepest)


def _between(xs: tuple[float, ...], x: float) -> tuple[int, float]:
    """The line on which `x` lies, and where: 0 at its beginning, 1 at its end."""
    at = min(bisect_right(xs, x) - 1, len(xs) - 2)
    return at, (x - xs[at]) / (xs[at + 1] - xs[at])
