"""Two layouts -> the parts that the cheapest chain between them sends, without the chain.

Planning compares many layouts and converts few. So here only basic moves are looked at, and sources
that differ in nothing but the order of dims, or of axes of one size, share a search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from shardlang.frozen.records import dataclass
from shardlang.plan.redistribute.collective_bytes import BitLayout, Space, members
from shardlang.plan.redistribute.searches import TIE, Search, engine


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A space in another order. dims: of each dim what it was; axes: of each axis what it is."""

    dims: Sequence[int]
    axes: Sequence[int]

    def point(self, it: BitLayout) -> BitLayout:
        axes = self.axes
        dims = tuple([tuple([axes[a] for a in it.dims[d]]) for d in self.dims])
        pending, replicated = (sum([1 << axes[a] for a in members(mask)]) for mask in it[1:])
        return BitLayout(dims, pending, replicated)


def least_parts(space: Space, source: BitLayout, target: BitLayout, gradient: bool) -> int | None:
    """The parts that the cheapest chain sends, forward and with `gradient` backward; None where
    there is no chain."""
    search, renamed = _search(space, source, gradient)
    weight = search.weight(renamed.point(target))
    return None if weight is None else weight // TIE


@lru_cache(maxsize=4096)
def _search(space: Space, source: BitLayout, gradient: bool) -> tuple[Search, _Renamed]:
    """The search of all sources that are like this one, and how it names what is here."""
    sizes, limits = space.sizes, space.limits
    dims = sorted(range(len(limits)), key=lambda d: (limits[d], d in space.uneven, [sizes[a] for a in source.dims[d]]))
    cutting = [a for d in dims for a in source.dims[d]]
    rest = [a for a in range(len(sizes)) if a not in cutting]
    rest.sort(key=lambda a: (source.pending >> a & 1, source.replicated >> a & 1))
    order = sorted([*cutting, *rest], key=sizes.__getitem__)
    uneven = frozenset(n for n, d in enumerate(dims) if d in space.uneven)
    alike = Space(tuple(sizes[a] for a in order), tuple(limits[d] for d in dims), uneven)
    renamed = _Renamed(dims, [order.index(a) for a in range(len(sizes))])
    return engine(alike, True).search(renamed.point(source), gradient), renamed
