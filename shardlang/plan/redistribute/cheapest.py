"""The cheapest chain of moves from one layout of a value to another, in bytes sent per rank,
forward and backward.

Exact by Dijkstra (searches.py; what it costs alone is least_parts.py's) on up to three axes and
four dims; on more, axes on which both ends agree stay as they are, those that go the same way go
together, and where the layouts are still too many the chain is greedy.py's. Costs are parts of the
whole value, so searches are shared by all shapes that divide alike. Trees are steiner_tree.py's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise

from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Move, MoveKind
from shardlang.plan.redistribute import along_time
from shardlang.plan.redistribute.axis_groups import axis_groups
from shardlang.plan.redistribute.collective_bytes import (
    BitLayout,
    Hop,
    RoutedValue,
    Space,
    limits,
    members,
    parts_to_bytes,
)
from shardlang.plan.redistribute.greedy import greedy
from shardlang.plan.redistribute.least_parts import least_parts
from shardlang.plan.redistribute.mesh_factorings import bridges
from shardlang.plan.redistribute.searches import EXACT_AXES, TIE, Nearest, engine
from shardlang.types.layout import Layout, identical
from shardlang.types.mesh import Mesh

EXACT_DIMS = 4
# The most axes whose layouts are searched at all.
SEARCHED_AXES = 5
# The most layouts of more than EXACT_AXES axes that all searches of a plan look at.
MOST_LAYOUTS = 20_000

Moves = along_time.Moves


class Route:
    """A cheapest chain. cost: bytes both ways."""

    def __init__(self, cost: int, find: Callable[[], Moves]) -> None:
        self.cost, self._find = cost, find

    @cached_property
    def moves(self) -> Moves:
        """Each with the layout after it; empty from source to itself. They are found when they are
        asked for: of most routes only the cost is."""
        return self._find()


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Layouts of one value on one mesh, without what need not change: axes they all agree on, dims
    none of them cuts.

    axes: the mesh axes that take part, in runs that stay together; dims: the tensor dims that do;
    prefixes: per tensor dim the axes that stay, in front; pending, replicated: those that stay;
    like: where axes of size 1 are, as along them all states are one; whole_bytes / share: bytes
    that `space.whole` parts stand for."""

    mesh: Mesh
    mesh_index: int
    space: Space
    axes: tuple[tuple[str, ...], ...]
    dims: tuple[int, ...]
    prefixes: tuple[tuple[str, ...], ...]
    pending: tuple[str, ...]
    replicated: tuple[str, ...]
    like: Layout
    whole_bytes: int
    share: int

    def state(self, layout: Layout) -> BitLayout:
        number = {run[0]: i for i, run in enumerate(self.axes)}
        return BitLayout(
            tuple(tuple(number[a] for a in layout.dims[d] if a in number) for d in self.dims),
            sum(1 << number[a] for a in layout.pending if a in number),
            sum(1 << number[a] for a in layout.replicated if a in number),
        )

    def layout(self, state: BitLayout) -> Layout:
        dims = list(self.prefixes)
        for dim, axes in zip(self.dims, state.dims, strict=True):
            dims[dim] = dims[dim] + self._names(axes)
        order = [a.name for a in self.mesh.axes]
        pending, replicated = self._names(members(state.pending)), self._names(members(state.replicated))
        whole = Layout(
            tuple(dims), tuple(sorted(self.pending + pending, key=order.index)),
            tuple(sorted(self.replicated + replicated, key=order.index)), self.mesh_index,
        )  # fmt: skip
        return with_unit_axes(whole, self.like, self.mesh)

    def _names(self, runs: Iterable[int]) -> tuple[str, ...]:
        return tuple([name for run in runs for name in self.axes[run]])

    def bytes(self, parts: int) -> int:
        return parts_to_bytes(parts, self.space.whole * self.share, self.whole_bytes)

    def move(self, step: Hop, gradient: bool) -> tuple[Move, Layout]:
        place = (*self.dims, -1)  # so that dim -1 stays -1
        axes = self._names(step.axes)
        backward = self.bytes(step.backward) if gradient else 0
        dim, from_dim = place[step.dim], place[step.from_dim]
        return Move(step.kind, axes, dim, from_dim, self.bytes(step.forward), backward), self.layout(step.to)


def search_space(layouts: tuple[Layout, ...], value: RoutedValue, mesh: Mesh) -> SearchSpace:
    """The space of a search among `layouts`, all on `mesh`; axes of size 1 lie as in the last."""
    like, (shape, itemsize, uneven) = layouts[-1], value
    layouts = tuple(with_unit_axes(x, identical(len(shape), x.mesh), mesh) for x in layouts)
    first = layouts[0]
    active = [a.name for a in mesh.axes if a.size > 1]
    prefixes: list[tuple[str, ...]] = [()] * len(shape)
    if len(active) > EXACT_AXES:
        prefixes = [() if d in uneven else _common_prefix([x.dims[d] for x in layouts]) for d in range(len(shape))]
        still = {a for axes in prefixes for a in axes}
        still |= {a for a in active if first.state(a) != "S" and all(x.state(a) == first.state(a) for x in layouts)}
        active = [a for a in active if a not in still]
    runs = axis_groups(layouts, active) if len(active) > EXACT_AXES else tuple((a,) for a in active)
    sizes = tuple(mesh.degree(run) for run in runs)
    shares = [mesh.degree(p) for p in prefixes]
    left = tuple(n // s for n, s in zip(shape, shares, strict=True))
    room = limits(left, math.prod(sizes), uneven)
    dims = _dims_in_play(layouts, room, active)
    uneven_dims = frozenset(i for i, d in enumerate(dims) if d in uneven)
    return SearchSpace(
        mesh, first.mesh, Space(sizes, tuple(room[d] for d in dims), uneven_dims), axes=runs, dims=dims,
        prefixes=tuple(prefixes), pending=tuple(a for a in first.pending if a not in active),
        replicated=tuple(a for a in first.replicated if a not in active), like=like,
        whole_bytes=math.prod(shape) * itemsize, share=math.prod(shares),
    )  # fmt: skip


def _common_prefix(dims: list[tuple[str, ...]]) -> tuple[str, ...]:
    length = 0
    while all(len(axes) > length and axes[length] == dims[0][length] for axes in dims):
        length += 1
    return dims[0][:length]


def _dims_in_play(layouts: tuple[Layout, ...], room: tuple[int, ...], active: list[str]) -> tuple[int, ...]:
    """The dims that are cut somewhere, and others that can be, roomiest first, up to EXACT_DIMS."""
    used = {d for x in layouts for d, axes in enumerate(x.dims) if any(a in active for a in axes)}
    spare = sorted((d for d in range(len(room)) if d not in used and room[d] > 1), key=lambda d: (-room[d], d))
    return tuple(sorted([*used, *spare[: max(0, EXACT_DIMS - len(used))]]))


def with_unit_axes(layout: Layout, like: Layout, mesh: Mesh) -> Layout:
    """`layout` with its axes of size 1 (of which all states are one) in the states of `like`."""
    unit = {a.name for a in mesh.axes if a.size == 1}
    if not unit:
        return layout
    order = [a.name for a in mesh.axes]
    dims = tuple(_dim_with_units(axes, others, unit) for axes, others in zip(layout.dims, like.dims, strict=True))
    merged = [
        tuple(sorted([*(a for a in mine if a not in unit), *(a for a in theirs if a in unit)], key=order.index))
        for mine, theirs in ((layout.pending, like.pending), (layout.replicated, like.replicated))
    ]
    return Layout(dims, merged[0], merged[1], layout.mesh)


def _dim_with_units(axes: tuple[str, ...], like: tuple[str, ...], unit: set[str]) -> tuple[str, ...]:
    real, units = tuple(a for a in axes if a not in unit), tuple(a for a in like if a in unit)
    if units == tuple(a for a in axes if a in unit):
        return axes
    return like if real == tuple(a for a in like if a not in unit) else units + real


VIEW = Move(MoveKind.VIEW, ())


class TooManyLayouts(Exception):
    """Raised where a plan's conversions are of more layouts than are looked at."""


class Router:
    """Routes and distances on the meshes of one plan, remembered. TooManyLayouts where all of them
    need a look at more layouts than MOST_LAYOUTS."""

    def __init__(self, meshes: tuple[Mesh, ...]) -> None:
        self.meshes = meshes
        self.time = along_time.times_of(meshes)
        self._distances: dict[tuple[object, ...], int | None] = {}
        self._routes: dict[tuple[object, ...], Route | None] = {}
        self._looked: dict[tuple[Space, BitLayout, bool], int] = {}
        self._layouts = 0

    def distance(self, source: Layout, target: Layout, value: RoutedValue, gradient: bool) -> int | None:
        """Bytes each rank sends, forward and (with `gradient`) backward; None without a chain."""
        if source is target:
            return 0
        key = (source, target, value, gradient)
        try:
            return self._distances[key]
        except KeyError:
            route = self.route(source, target, value, gradient)
            cost = self._distances[key] = None if route is None else route.cost
            return cost

    def route(self, source: Layout, target: Layout, value: RoutedValue, gradient: bool) -> Route | None:
        key = (source, target, value, gradient)
        if key not in self._routes:
            find = self._same_mesh if source.mesh == target.mesh else self._across
            if self.time is not None:
                find = self._timed
            self._routes[key] = find(source, target, value, gradient)
        return self._routes[key]

    def _same_mesh(self, source: Layout, target: Layout, value: RoutedValue, gradient: bool) -> Route | None:
        if source == target:
            return Route(0, tuple)
        mesh = self.meshes[source.mesh]
        start = with_unit_axes(source, target, mesh)
        about = search_space((start, target), value, mesh)
        ends = about.state(start), about.state(target)
        cost = least(about, *ends, gradient)
        if EXACT_AXES < len(about.axes) <= SEARCHED_AXES:
            self._count(about.space, *ends, gradient)
        if cost is None:
            return None

        def moves() -> Moves:
            view = () if start == source else ((VIEW, start),)
            return (*view, *[about.move(step, gradient) for step in chain(about, *ends, gradient)[0]])

        return Route(about.bytes(cost), moves)

    def _count(self, space: Space, source: BitLayout, target: BitLayout, gradient: bool) -> None:
        """Adds what a search looked at: as many layouts where they were looked at before."""
        search, key = engine(space).search(source, gradient), (space, source, gradient)
        assert isinstance(search, Nearest)
        before = self._looked.get(key, 0)
        self._looked[key] = max(before, search.looked(target))
        self._layouts += self._looked[key] - before
        if self._layouts > MOST_LAYOUTS:
            raise TooManyLayouts

    def _timed(self, source: Layout, target: Layout, value: RoutedValue, gradient: bool) -> Route | None:
        """The change in time, then one microbatch's route over the ranks; bytes of all of them."""
        assert self.time is not None
        axis = self.time[0]
        if along_time.same(source, target, axis):
            return self._over_ranks(source, target, value, gradient)
        ready = along_time.uncut(source, target, gradient, axis)
        first = self._over_ranks(source, ready, value, gradient)
        found = along_time.step(ready, target, gradient, axis)
        if first is None or found is None:
            return None
        rest = self._over_ranks(found[1], target, value, gradient)
        return None if rest is None else joined(first, found, rest)

    def _over_ranks(self, source: Layout, target: Layout, value: RoutedValue, gradient: bool) -> Route | None:
        """The route between layouts that are alike in time (`target` is taken for it)."""
        assert self.time is not None
        axis, count = self.time
        ranks = _equal_router(tuple(m.timeless for m in self.meshes))
        here, there = along_time.without(source, axis), along_time.without(target, axis)
        found = ranks.route(here, there, along_time.part(value, source, axis, count), gradient)
        return found and Route(found.cost * count, lambda: along_time.scaled(found.moves, source, axis, count))

    def _across(self, source: Layout, target: Layout, value: RoutedValue, gradient: bool) -> Route | None:
        """Through the cheapest layout that means the same on both meshes."""
        here, there = self.meshes[source.mesh], self.meshes[target.mesh]
        best: tuple[tuple[int, int], Route] | None = None
        for out, into in bridges(here, there, value.shape, value.uneven, source.mesh, target.mesh):
            first = self.route(source, out, value, gradient)
            if first is None or (best and first.cost > best[0][0]):
                continue
            second = self.route(into, target, value, gradient)
            if second is None:
                continue
            found = joined(first, (VIEW, into), second)
            rank = (found.cost, len(found.moves))
            if best is None or rank < best[0]:
                best = rank, found
        return None if best is None else best[1]


def joined(first: Route, between: tuple[Move, Layout], second: Route) -> Route:
    """One route after the other, and a move that is free in between."""
    return Route(first.cost + second.cost, lambda: (*first.moves, between, *second.moves))


def least(about: SearchSpace, source: BitLayout, target: BitLayout, gradient: bool) -> int | None:
    """The parts that `chain` sends, without its moves."""
    if len(about.axes) <= EXACT_AXES:
        return least_parts(about.space, source, target, gradient)
    return chain(about, source, target, gradient)[1]


def chain(about: SearchSpace, source: BitLayout, target: BitLayout, gradient: bool) -> tuple[Sequence[Hop], int | None]:
    """The moves between two states and the parts that they send; None: there is no way."""
    many = len(about.axes)
    if many <= SEARCHED_AXES:
        search = engine(about.space).search(source, gradient)
        weight = search.weight(target)
        if weight is not None:
            nodes = search.chain(target)
            return [search.engine.step(a, b, gradient) for a, b in pairwise(nodes)], weight // TIE
        if many <= EXACT_AXES:
            return (), None
    steps = greedy(source, target, about.space)
    return steps, sum(s.forward + s.backward * gradient for s in steps)


@lru_cache(maxsize=64)
def _equal_router(meshes: tuple[Mesh, ...]) -> Router:
    return Router(meshes)


_LAST: list[tuple[tuple[Mesh, ...], Router]] = [((), Router(()))]


def forget(meshes: tuple[Mesh, ...]) -> bool:
    """Whether the meshes have so many axes that their searches are counted. Then nothing is
    remembered of the plans before, so that what is accepted does not depend on them."""
    many = any(sum(a.size > 1 for a in mesh.axes) > EXACT_AXES for mesh in meshes)
    if many:
        _equal_router.cache_clear()
        _LAST[0] = (), Router(())
    return many


def router(meshes: tuple[Mesh, ...]) -> Router:
    """The remembered router of these meshes; the last is at hand, as hashing meshes costs more."""
    if _LAST[0][0] is not meshes:
        _LAST[0] = meshes, _equal_router(meshes)
    return _LAST[0][1]
