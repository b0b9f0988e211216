"""The legal moves of a value: from one layout to the layouts one collective (or local step) away,
with bytes per rank.

The table and its multi-axis rules are in specs/redistribution.md. A gather, an all-to-all or S -> P
takes the minor-most axes off a dim; a cut, a reduce-scatter or an all-to-all appends as minor-most.
A move of one kind over several axes is one move. Chains of moves are cheapest.py's; shared chains
are steiner_tree.py's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, groupby, permutations, product
from typing import Any, NamedTuple

from shardlang.frozen.records import dataclass
from shardlang.plan.plan import MoveKind


class RoutedValue(NamedTuple):
    """The facts about a value on which its routes depend, besides its layouts. uneven: dims cut in
    blocks that differ."""

    shape: tuple[int, ...]
    itemsize: int
    uneven: frozenset[int] = frozenset()


class BitLayout(NamedTuple):
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
    to: BitLayout


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

    state: BitLayout
    space: Space
    local: int
    rooms: tuple[int, ...]
    identical: tuple[int, ...]
    replicated: tuple[int, ...]
    pending: tuple[int, ...]
    basic: bool
    most: int


class Bundle(NamedTuple):
    """Moves that send alike, which are made when they are asked for. sent: parts forward and
    backward; find: the moves, from `given`."""

    sent: tuple[int, int]
    find: Callable[..., Iterable[Hop]]
    given: tuple[Any, ...]

    def hops(self) -> Iterable[Hop]:
        return self.find(self.sent, *self.given)


def steps(state: BitLayout, space: Space, basic: bool = False) -> list[Hop]:
    """All moves from `state`, in a fixed order. basic: without those for which others, one after
    the other, send as much: over several axes cuts, gathers and all that is free, except where dims
    are uneven; from P to R by way of I, and back."""
    return [hop for sent, find, given in bundles(state, space, basic) for hop in find(sent, *given)]


def bundles(state: BitLayout, space: Space, basic: bool = False) -> Iterator[Bundle]:
    """The moves of `steps`, in that order, none of them made yet."""
    degrees = [space.degree(axes) for axes in state.dims]
    rooms = tuple([_room(space, dim, *each) for dim, each in enumerate(zip(state.dims, degrees, strict=True))])
    split = sum([1 << a for axes in state.dims for a in axes])
    identical = ((1 << len(space.sizes)) - 1) & ~(split | state.pending | state.replicated)
    here = _Here(
        state, space, space.whole // math.prod(degrees), rooms=rooms, identical=members(identical),
        replicated=members(state.replicated),
        pending=members(state.pending), basic=basic, most=1 if basic else len(space.sizes),
    )  # fmt: skip
    yield from _whole_steps(here)
    yield from _cut_steps(here)
    yield from _uncut_steps(here)
    if not any([state.dims[d] for d in space.uneven]):
        yield Bundle((here.local, here.local), _permute_steps, (here,))


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


@lru_cache(maxsize=4096)
def _by_degree(runs: tuple[AxisRun, ...]) -> tuple[tuple[int, tuple[AxisRun, ...]], ...]:
    """The runs, neighbours of one degree together."""
    return tuple((n, tuple(each)) for n, each in groupby(runs, key=lambda run: run.degree))


def _whole_steps(here: _Here) -> Iterator[Bundle]:
    """The moves that leave every dim as it is: among I, R and P."""
    (dims, p, r), sizes, every = here.state, here.space.sizes, len(here.space.sizes)
    for axes, bits, n in _runs(sizes, here.identical, False, every):
        yield Bundle((0, _all_reduce(n, here.local)), _whole, (MoveKind.I_TO_R, axes, dims, p, r | bits))
        if len(axes) <= here.most:
            yield Bundle((0, 0), _whole, (MoveKind.I_TO_P, axes, dims, p | bits, r))
    for axes, bits, _ in _runs(sizes, here.replicated, False, here.most):
        yield Bundle((0, 0), _whole, (MoveKind.R_TO_I, axes, dims, p, r & ~bits))
        if not here.basic:
            yield Bundle((0, 0), _whole, (MoveKind.R_TO_P, axes, dims, p | bits, r & ~bits))
    for axes, bits, n in _runs(sizes, here.pending, False, every):
        reduce = _all_reduce(n, here.local)
        yield Bundle((reduce, 0), _whole, (MoveKind.P_TO_I, axes, dims, p & ~bits, r))
        if not here.basic:
            yield Bundle((reduce, reduce), _whole, (MoveKind.P_TO_R, axes, dims, p & ~bits, r | bits))


def _whole(sent: tuple[int, int], kind: MoveKind, axes: tuple[int, ...], *to: Any) -> Sequence[Hop]:
    return (Hop(kind, axes, -1, -1, *sent, BitLayout(*to)),)


def _all_reduce(n: int, local: int) -> int:
    return 2 * (n - 1) * local // n


def _cut_steps(here: _Here) -> Iterator[Bundle]:
    """The moves that append axes to a dim: slices and reduce-scatters."""
    space, local = here.space, here.local
    rows = (
        (MoveKind.I_TO_S, here.identical, 0, 1), (MoveKind.R_TO_S, here.replicated, 0, 0),
        (MoveKind.P_TO_S, here.pending, 1, 1),
    )  # fmt: skip
    for dim, room in enumerate(here.rooms):
        if room == 1:
            continue
        most = len(space.sizes) if dim in space.uneven else here.most
        for kind, members, forward, backward in rows:
            for n, runs in _by_degree(_runs(space.sizes, members, True, most)):
                if room % n == 0:
                    moved = (n - 1) * local // n
                    yield Bundle((forward * moved, backward * moved), _cut, (here.state, kind, dim, runs))


def _cut(sent: tuple[int, int], state: BitLayout, kind: MoveKind, dim: int, runs: Sequence[AxisRun]) -> Iterator[Hop]:
    dims, p, r = state
    for axes, bits, _ in runs:
        to = BitLayout(_with_dim(dims, dim, dims[dim] + axes), p & ~bits, r & ~bits)
        yield Hop(kind, axes, dim, -1, *sent, to)


def _room(space: Space, dim: int, present: tuple[int, ...], degree: int) -> int:
    """The size that further axes of a dim must divide; 1 where nothing fits (also where it is cut
    unlawfully as it stands). degree: of those that are there."""
    if present and dim in space.uneven:
        return 1
    limit = space.limits[dim]
    return limit // degree if limit % degree == 0 else 1


def _with_dim(dims: tuple[tuple[int, ...], ...], dim: int, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (*dims[:dim], axes, *dims[dim + 1 :])


def _uncut_steps(here: _Here) -> Iterator[Bundle]:
    """The moves that take the minor-most axes off a dim: gathers, zero-pads, all-to-alls."""
    uneven = here.space.uneven
    for dim, present in enumerate(here.state.dims):
        lengths = range(min(1, len(present))) if dim in uneven else reversed(range(len(present)))
        for keep in lengths:
            gathers = dim in uneven or len(present) - keep <= here.most
            n = here.space.degree(present[keep:])
            gathered, given = (n - 1) * here.local, (here, dim, keep)
            if gathers:
                yield Bundle((gathered, 0), _gather, (MoveKind.S_TO_I, *given))
                yield Bundle((gathered, gathered), _gather, (MoveKind.S_TO_R, *given))
                yield Bundle((0, 0), _gather, (MoveKind.S_TO_P, *given))
            yield Bundle((gathered // n, gathered // n), _exchange, (*given, n))


def _gather(sent: tuple[int, int], kind: MoveKind, here: _Here, dim: int, keep: int) -> Sequence[Hop]:
    """The move that takes the axes from the `keep`-th on off a dim, and sends nothing."""
    dims, p, r = here.state
    kept, axes = dims[dim][:keep], dims[dim][keep:]
    bits = sum([1 << a for a in axes])
    pending, replicated = (bits if kind is MoveKind.S_TO_P else 0), (bits if kind is MoveKind.S_TO_R else 0)
    return (Hop(kind, axes, dim, -1, *sent, BitLayout(_with_dim(dims, dim, kept), p | pending, r | replicated)),)


def _exchange(sent: tuple[int, int], here: _Here, dim: int, keep: int, n: int) -> Iterator[Hop]:
    """The all-to-alls that take the axes from the `keep`-th on off a dim."""
    whole, p, r = here.state
    dims, axes = _with_dim(whole, dim, whole[dim][:keep]), whole[dim][keep:]
    for other, present in enumerate(dims):
        if other != dim and here.rooms[other] % n == 0:
            yield Hop(MoveKind.S_TO_S, axes, other, dim, *sent, BitLayout(_with_dim(dims, other, present + axes), p, r))


def _permute_steps(sent: tuple[int, int], here: _Here) -> Iterator[Hop]:
    """The reassignments of axes that keep the product of each dim, and of each of I, R and P."""
    state, space = here.state, here.space
    slots = (*state.dims, here.pending, here.replicated, here.identical)
    for to in _assignments(space.sizes, tuple([space.degree(axes) for axes in slots])):
        if to != state:
            yield Hop(MoveKind.PERMUTE, moved_axes(state, to, space.sizes), -1, -1, *sent, to)


@lru_cache(maxsize=4096)
def _assignments(sizes: tuple[int, ...], products: tuple[int, ...]) -> tuple[BitLayout, ...]:
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
        BitLayout(dims, sum(1 << a for a in f[-3]), sum(1 << a for a in f[-2]))
        for f in found
        for dims in product(*(permutations(axes) for axes in f[:-3]))
    )


def moved_axes(before: BitLayout, after: BitLayout, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that a permutation changes: those that leave their slot or stride within a dim."""
    was, now = _places(before, sizes), _places(after, sizes)
    return tuple([a for a in range(len(sizes)) if was[a] != now[a]])


@lru_cache(maxsize=4096)
def _places(state: BitLayout, sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
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
