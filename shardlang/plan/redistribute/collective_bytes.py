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


class _Here(NamedTuple):
    """A state and what its moves have in common. local: the parts that a rank has; rooms: per dim
    the size that further axes must divide; identical, replicated, pending: the axes that cut
    nothing; basic: as in `steps`; most: how many axes a move runs over that one move each could."""

    state: Point
    space: Space
    local: int
    rooms: tuple[int, ...]
    identical: tuple[int, ...]
    replicated: tuple[int, ...]
    pending: tuple[int, ...]
    basic: bool
    most: int


def steps(state: Point, space: Space, basic: bool = False) -> list[Hop]:
    """All moves from `state`, in a fixed order. basic: without those for which others, one after
    the other, send as much: over several axes cuts, gathers and all that is free, except where dims
    are uneven; from P to R by way of I, and back."""
    degrees = [space.degree(axes) for axes in state.dims]
    rooms = tuple([_room(space, dim, *each) for dim, each in enumerate(zip(state.dims, degrees, strict=True))])
    split = sum([1 << a for axes in state.dims for a in axes])
    identical = ((1 << len(space.sizes)) - 1) & ~(split | state.pending | state.replicated)
    here = _Here(
        state, space, space.whole // math.prod(degrees), rooms, members(identical), members(state.replicated),
        members(state.pending), basic, 1 if basic else len(space.sizes),
    )  # fmt: skip
    return [*_whole_steps(here), *_cut_steps(here), *_uncut_steps(here), *_permute_steps(here)]


@lru_cache(maxsize=4096)
def members(mask: int) -> tuple[int, ...]:
    return tuple(a for a in range(mask.bit_length()) if mask >> a & 1)


class AxisRun(NamedTuple):
    """Axes that one move runs over, the same as a bit set, and how many ranks that is."""

    axes: tuple[int, ...]
    bits: int
    degree: int


@lru_cache(maxsize=4096)
def _runs(sizes: tuple[int, ...], members: tuple[int, ...], ordered: bool, most: int) -> tuple[AxisRun, ...]:
    """Every choice of one to `most` of the axes; `ordered`, in every order."""
    choose = permutations if ordered else combinations
    found = [axes for n in range(1, min(most, len(members)) + 1) for axes in choose(members, n)]
    return tuple(AxisRun(axes, sum(1 << a for a in axes), math.prod([sizes[a] for a in axes])) for axes in found)


def _whole_steps(here: _Here) -> Iterator[Hop]:
    """The moves that leave every dim as it is: among I, R and P."""
    (dims, p, r), sizes, every = here.state, here.space.sizes, len(here.space.sizes)
    for axes, bits, n in _runs(sizes, here.identical, False, every):
        yield Hop(MoveKind.I_TO_R, axes, -1, -1, 0, _all_reduce(n, here.local), Point(dims, p, r | bits))
        if len(axes) <= here.most:
            yield Hop(MoveKind.I_TO_P, axes, -1, -1, 0, 0, Point(dims, p | bits, r))
    for axes, bits, _ in _runs(sizes, here.replicated, False, here.most):
        yield Hop(MoveKind.R_TO_I, axes, -1, -1, 0, 0, Point(dims, p, r & ~bits))
        if not here.basic:
            yield Hop(MoveKind.R_TO_P, axes, -1, -1, 0, 0, Point(dims, p | bits, r & ~bits))
    for axes, bits, n in _runs(sizes, here.pending, False, every):
        reduce = _all_reduce(n, here.local)
        yield Hop(MoveKind.P_TO_I, axes, -1, -1, reduce, 0, Point(dims, p & ~bits, r))
        if not here.basic:
            yield Hop(MoveKind.P_TO_R, axes, -1, -1, reduce, reduce, Point(dims, p & ~bits, r | bits))


def _all_reduce(n: int, local: int) -> int:
    return 2 * (n - 1) * local // n


def _cut_steps(here: _Here) -> Iterator[Hop]:
    """The moves that append axes to a dim: slices and reduce-scatters."""
    (dims, p, r), space, local = here.state, here.space, here.local
    rows = (
        (MoveKind.I_TO_S, here.identical, 0, 1), (MoveKind.R_TO_S, here.replicated, 0, 0),
        (MoveKind.P_TO_S, here.pending, 1, 1),
    )  # fmt: skip
    for dim, present in enumerate(dims):
        room = here.rooms[dim]
        if room == 1:
            continue
        most = len(space.sizes) if dim in space.uneven else here.most
        for kind, members, forward, backward in rows:
            for axes, bits, n in _runs(space.sizes, members, True, most):
                if room % n == 0:
                    moved = (n - 1) * local // n
                    to = Point(_with_dim(dims, dim, present + axes), p & ~bits, r & ~bits)
                    yield Hop(kind, axes, dim, -1, forward * moved, backward * moved, to)


def _room(space: Space, dim: int, present: tuple[int, ...], degree: int) -> int:
    """The size that further axes of a dim must divide; 1 where nothing fits (also where it is cut
    unlawfully as it stands). degree: of those that are there."""
    if present and dim in space.uneven:
        return 1
    limit = space.limits[dim]
    return limit // degree if limit % degree == 0 else 1


def _with_dim(dims: tuple[tuple[int, ...], ...], dim: int, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (*dims[:dim], axes, *dims[dim + 1 :])


def _uncut_steps(here: _Here) -> Iterator[Hop]:
    """The moves that take the minor-most axes off a dim: gathers, zero-pads, all-to-alls."""
    uneven = here.space.uneven
    for dim, present in enumerate(here.state.dims):
        lengths = range(min(1, len(present))) if dim in uneven else reversed(range(len(present)))
        for keep in lengths:
            gathers = dim in uneven or len(present) - keep <= here.most
            yield from _uncut(here, dim, present[:keep], present[keep:], gathers)


def _uncut(here: _Here, dim: int, kept: tuple[int, ...], axes: tuple[int, ...], gathers: bool) -> Iterator[Hop]:
    """The moves of these axes of a dim. gathers: whether those are among them that send nothing to
    another dim."""
    n, bits = here.space.degree(axes), sum([1 << a for a in axes])
    (here_dims, p, r), gathered = here.state, (n - 1) * here.local
    dims = _with_dim(here_dims, dim, kept)
    if gathers:
        yield Hop(MoveKind.S_TO_I, axes, dim, -1, gathered, 0, Point(dims, p, r))
        yield Hop(MoveKind.S_TO_R, axes, dim, -1, gathered, gathered, Point(dims, p, r | bits))
        yield Hop(MoveKind.S_TO_P, axes, dim, -1, 0, 0, Point(dims, p | bits, r))
    sent = gathered // n
    for other, present in enumerate(dims):
        if other != dim and here.rooms[other] % n == 0:
            to = Point(_with_dim(dims, other, present + axes), p, r)
            yield Hop(MoveKind.S_TO_S, axes, other, dim, sent, sent, to)


def _permute_steps(here: _Here) -> Iterator[Hop]:
    """The reassignments of axes that keep the product of each dim, and of each of I, R and P."""
    state, space, local = here.state, here.space, here.local
    if any([state.dims[d] for d in space.uneven]):
        return
    slots = (*state.dims, here.pending, here.replicated, here.identical)
    for to in _assignments(space.sizes, tuple([space.degree(axes) for axes in slots])):
        if to != state:
            yield Hop(MoveKind.PERMUTE, moved_axes(state, to, space.sizes), -1, -1, local, local, to)


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
                place(axis + 1, (*left[:slot], room // sizes[axis], *left[slot + 1 :]))
                slots[slot].pop()

    place(0, products)
    return tuple(
        Point(dims, sum(1 << a for a in f[-3]), sum(1 << a for a in f[-2]))
        for f in found
        for dims in product(*(permutations(axes) for axes in f[:-3]))
    )


def moved_axes(before: Point, after: Point, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that a permutation changes: those that leave their slot or stride within a dim."""
    was, now = _places(before, sizes), _places(after, sizes)
    return tuple([a for a in range(len(sizes)) if was[a] != now[a]])


@lru_cache(maxsize=4096)
def _places(state: Point, sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
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
    return tuple(places)


def limits(shape: tuple[int, ...], ranks: int, uneven: frozenset[int]) -> tuple[int, ...]:
    """Per dim what its axes' product must divide: it divides `ranks`, so gcd(size, ranks)."""
    return tuple(ranks if i in uneven else math.gcd(size, ranks) for i, size in enumerate(shape))


def parts_to_bytes(parts: int, whole_parts: int, whole_bytes: int) -> int:
    """Rounded up, so that what costs anything never counts as free."""
    return -(-parts * whole_bytes // whole_parts)
