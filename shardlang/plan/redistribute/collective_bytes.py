"""The legal moves of a value: from one layout to the layouts one collective (or local step) away,
with bytes per rank.

The table and its multi-axis rules are in specs/redistribution.md. A gather, an all-to-all or S -> P
takes the minor-most axes off a dim; a cut, a reduce-scatter or an all-to-all appends as minor-most.
A move of one kind over several axes is one move. Chains of moves are cheapest.py's; shared chains
are steiner_tree.py's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, permutations, product
from typing import NamedTuple

from shardlang.plan.plan import MoveKind
from shardlang.records import dataclass


class Point(NamedTuple):
    """A layout over numbered axes: `dims[i]`: the axes that cut dim i; the others are bit sets."""

    dims: tuple[tuple[int, ...], ...]
    pending: int
    replicated: int


class Hop(NamedTuple):
    """A move over numbered axes. Costs count parts, `Space.whole` to a value: all are integers."""

    kind: MoveKind
    axes: tuple[int, ...]
    dim: int
    from_dim: int
    forward: int
    backward: int
    to: Point


@dataclass(frozen=True, slots=True)
class Space:
    """The facts that decide the legal moves: the sizes of the axes, and per dim what the product of
    its axes must divide.

    uneven: dims cut in blocks that differ. Such a dim is cut, gathered and exchanged at once and in
    whole, since blocks of blocks are not the blocks of a finer cut; and no permutation moves its
    blocks."""

    sizes: tuple[int, ...]
    limits: tuple[int, ...]
    uneven: frozenset[int] = frozenset()

    @property
    def ranks(self) -> int:
        return math.prod(self.sizes)

    @property
    def whole(self) -> int:
        """Parts in the whole value: every cost of a move is a multiple of 1 / ranks^2 of it."""
        return self.ranks**2

    def degree(self, axes: tuple[int, ...]) -> int:
        return math.prod([self.sizes[a] for a in axes])


def steps(state: Point, space: Space) -> list[Hop]:
    """All moves from `state`, in a fixed order."""
    local = space.whole // math.prod([space.degree(axes) for axes in state.dims])
    split = sum(1 << a for axes in state.dims for a in axes)
    pending = members(state.pending)
    replicated = members(state.replicated)
    identical = members(((1 << len(space.sizes)) - 1) & ~(split | state.pending | state.replicated))
    return [
        *_whole_steps(state, space, local, identical, replicated, pending),
        *_cut_steps(state, space, local, identical, replicated, pending),
        *_uncut_steps(state, space, local),
        *_permute_steps(state, space, local, identical),
    ]


@lru_cache(maxsize=4096)
def members(mask: int) -> tuple[int, ...]:
    return tuple(a for a in range(mask.bit_length()) if mask >> a & 1)


class AxisRun(NamedTuple):
    """Axes that one move runs over, the same as a bit set, and how many ranks that is."""

    axes: tuple[int, ...]
    bits: int
    degree: int


@lru_cache(maxsize=4096)
def _runs(sizes: tuple[int, ...], members: tuple[int, ...], ordered: bool) -> tuple[AxisRun, ...]:
    """Every choice of one or more of the axes; `ordered`, in every order."""
    choose = permutations if ordered else combinations
    found = [axes for n in range(1, len(members) + 1) for axes in choose(members, n)]
    return tuple(AxisRun(axes, sum(1 << a for a in axes), math.prod([sizes[a] for a in axes])) for axes in found)


def _whole_steps(state: Point, space: Space, local: int, identical: tuple[int, ...], replicated: tuple[int, ...],
                 pending: tuple[int, ...]) -> Iterator[Hop]:
    """The moves that leave every dim as it is: among I, R and P."""
    dims, p, r = state
    for axes, bits, n in _runs(space.sizes, identical, False):
        yield Hop(MoveKind.I_TO_R, axes, -1, -1, 0, _all_reduce(n, local), Point(dims, p, r | bits))
        yield Hop(MoveKind.I_TO_P, axes, -1, -1, 0, 0, Point(dims, p | bits, r))
    for axes, bits, _ in _runs(space.sizes, replicated, False):
        yield Hop(MoveKind.R_TO_I, axes, -1, -1, 0, 0, Point(dims, p, r & ~bits))
        yield Hop(MoveKind.R_TO_P, axes, -1, -1, 0, 0, Point(dims, p | bits, r & ~bits))
    for axes, bits, n in _runs(space.sizes, pending, False):
        reduce = _all_reduce(n, local)
        yield Hop(MoveKind.P_TO_I, axes, -1, -1, reduce, 0, Point(dims, p & ~bits, r))
        yield Hop(MoveKind.P_TO_R, axes, -1, -1, reduce, reduce, Point(dims, p & ~bits, r | bits))


def _all_reduce(n: int, local: int) -> int:
    return 2 * (n - 1) * local // n


def _cut_steps(state: Point, space: Space, local: int, identical: tuple[int, ...], replicated: tuple[int, ...],
               pending: tuple[int, ...]) -> Iterator[Hop]:
    """The moves that append axes to a dim: slices and reduce-scatters."""
    dims, p, r = state
    rows = ((MoveKind.I_TO_S, identical, 0, 1), (MoveKind.R_TO_S, replicated, 0, 0), (MoveKind.P_TO_S, pending, 1, 1))
    for dim, present in enumerate(dims):
        room = _room(space, dim, present)
        if room == 1:
            continue
        for kind, members, forward, backward in rows:
            for axes, bits, n in _runs(space.sizes, members, True):
                if room % n == 0:
                    moved = (n - 1) * local // n
                    to = Point(_with_dim(dims, dim, present + axes), p & ~bits, r & ~bits)
                    yield Hop(kind, axes, dim, -1, forward * moved, backward * moved, to)


def _room(space: Space, dim: int, present: tuple[int, ...]) -> int:
    """The size that further axes of a dim must divide; 1 where nothing fits (also where it is cut
    unlawfully as it stands)."""
    if present and dim in space.uneven:
        return 1
    limit, used = space.limits[dim], space.degree(present)
    return limit // used if limit % used == 0 else 1


def _with_dim(dims: tuple[tuple[int, ...], ...], dim: int, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (*dims[:dim], axes, *dims[dim + 1:])


def _uncut_steps(state: Point, space: Space, local: int) -> Iterator[Hop]:
    """The moves that take the minor-most axes off a dim: gathers, zero-pads, all-to-alls."""
    for dim, present in enumerate(state.dims):
        lengths = range(min(1, len(present))) if dim in space.uneven else reversed(range(len(present)))
        for keep in lengths:
            yield from _uncut(state, space, local, dim, present[:keep], present[keep:])


def _uncut(state: Point, space: Space, local: int, dim: int, kept: tuple[int, ...],
           axes: tuple[int, ...]) -> Iterator[Hop]:
    n, bits = space.degree(axes), sum(1 << a for a in axes)
    dims, gathered = _with_dim(state.dims, dim, kept), (n - 1) * local
    p, r = state.pending, state.replicated
    yield Hop(MoveKind.S_TO_I, axes, dim, -1, gathered, 0, Point(dims, p, r))
    yield Hop(MoveKind.S_TO_R, axes, dim, -1, gathered, gathered, Point(dims, p, r | bits))
    yield Hop(MoveKind.S_TO_P, axes, dim, -1, 0, 0, Point(dims, p | bits, r))
    sent = gathered // n
    for other, present in enumerate(dims):
        if other != dim and _room(space, other, present) % n == 0:
            to = Point(_with_dim(dims, other, present + axes), p, r)
            yield Hop(MoveKind.S_TO_S, axes, other, dim, sent, sent, to)


def _permute_steps(state: Point, space: Space, local: int, identical: tuple[int, ...]) -> Iterator[Hop]:
    """The reassignments of axes that keep the product of each dim, and of each of I, R and P."""
    if any(state.dims[d] for d in space.uneven):
        return
    slots = (*state.dims, members(state.pending), members(state.replicated), identical)
    products = tuple(space.degree(axes) for axes in slots)
    for to in _assignments(space.sizes, products):
        if to != state:
            axes = moved_axes(state, to, space.sizes)
            yield Hop(MoveKind.PERMUTE, axes, -1, -1, local, local, to)


@lru_cache(maxsize=4096)
def _assignments(sizes: tuple[int, ...], products: tuple[int, ...]) -> tuple[Point, ...]:
    """All states whose dims, P, R and I (the last three products) have these products."""
    found: list[tuple[tuple[int, ...], ...]] = []
    slots: list[list[int]] = [[] for _ in products]

    def place(axis: int, left: tuple[int, ...]) -> None:
        if axis == len(sizes):
            found.append(tuple(tuple(s) for s in slots))
            return
        for slot, room in enumerate(left):
            if room % sizes[axis] == 0:
                slots[slot].append(axis)
                place(axis + 1, (*left[:slot], room // sizes[axis], *left[slot + 1:]))
                slots[slot].pop()

    place(0, products)
    return tuple(
        Point(dims, sum(1 << a for a in f[-3]), sum(1 << a for a in f[-2]))
        for f in found for dims in product(*(permutations(axes) for axes in f[:-3]))
    )


def moved_axes(before: Point, after: Point, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that a permutation changes: those that leave their slot or stride within a dim."""
    was, now = _places(before, sizes), _places(after, sizes)
    return tuple(a for a in range(len(sizes)) if was[a] != now[a])


def _places(state: Point, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Per axis its slot (dim, or -1 P, -2 R, -3 I) and its stride in that dim's blocks (else 0)."""
    places = [(-3, 0)] * len(sizes)
    for axis in members(state.pending):
        places[axis] = (-1, 0)
    for axis in members(state.replicated):
        places[axis] = (-2, 0)
    for dim, axes in enumerate(state.dims):
        stride = 1
        for axis in reversed(axes):
            places[axis] = (dim, stride)
            stride *= sizes[axis]
    return places


def limits(shape: tuple[int, ...], ranks: int, uneven: frozenset[int]) -> tuple[int, ...]:
    """Per dim what its axes' product must divide: it divides `ranks`, so gcd(size, ranks)."""
    return tuple(ranks if i in uneven else math.gcd(size, ranks) for i, size in enumerate(shape))


def parts_to_bytes(parts: int, whole_parts: int, whole_bytes: int) -> int:
    """Rounded up, so that what costs anything never counts as free."""
    return -(-parts * whole_bytes // whole_parts)
