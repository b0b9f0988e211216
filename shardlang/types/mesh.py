"""A mesh: named axes over ranks, row-major, outermost first. Pure values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardlang.frozen.records import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """A named factor of the ranks: the user's name, one made from it (`dp0`), or `a`, `b`, ... for
    positional rules.

    time: the axis of the microbatches. It counts like ranks in layouts, but is run through one
    after another."""

    name: str
    size: int
    time: bool = False


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes, outermost first. `name`: "mesh", or "mesh2".. for further factorings of the ranks."""

    axes: tuple[Axis, ...]
    name: str = "mesh"

    @property
    def size(self) -> int:
        return math.prod(a.size for a in self.axes)

    def axis_size(self, name: str) -> int:
        for axis in self.axes:
            if axis.name == name:
                return axis.size
        raise KeyError(name)

    def degree(self, axes: Sequence[str]) -> int:
        """Product of the sizes of `axes`."""
        return math.prod([self.axis_size(a) for a in axes])

    @property
    def time(self) -> Axis | None:
        """The axis of the microbatches, if there is one; it is the last."""
        return self.axes[-1] if self.axes and self.axes[-1].time else None

    @property
    def timeless(self) -> Mesh:
        """The mesh of the ranks alone."""
        return Mesh(self.axes[:-1], self.name) if self.time else self

    def ranked(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """`axes` without that of the microbatches: those over which something is sent."""
        time = self.time
        return axes if time is None or time.name not in axes else tuple([a for a in axes if a != time.name])

    def stride(self, name: str) -> int:
        """Distance in ranks between neighbours along an axis."""
        stride = 1
        for axis in reversed(self.axes):
            if axis.name == name:
                return stride
            stride *= axis.size
        raise KeyError(name)

    def coordinate(self, rank: int, name: str) -> int:
        return rank // self.stride(name) % self.axis_size(name)

    def index(self, rank: int, axes: Sequence[str]) -> int:
        """The number of a rank among those that differ only along `axes`; the first is major."""
        number = 0
        for axis in axes:
            number = number * self.axis_size(axis) + self.coordinate(rank, axis)
        return number

    def group(self, rank: int, axes: Sequence[str]) -> list[int]:
        """The ranks that share all of a rank's coordinates but those of `axes`, ordered by these,
        the first major."""
        members = [rank - sum(self.coordinate(rank, name) * self.stride(name) for name in axes)]
        for name in axes:
            stride = self.stride(name)
            members = [m + i * stride for m in members for i in range(self.axis_size(name))]
        return members

    def groups(self, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The rank groups that share all coordinates but those of `axes`.

        Members are ordered as in `group`, groups by their least rank.
        Cost grows with the rank count: for reports and launch only, never for planning.
        """
        offsets = self.group(0, axes)
        first = [r for r in range(self.size) if all(self.coordinate(r, a) == 0 for a in axes)]
        return tuple(tuple(r + o for o in offsets) for r in first)
