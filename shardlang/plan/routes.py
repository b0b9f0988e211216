"""The cheapest chain of moves from one layout of a value to another, in bytes sent per rank, forward and backward.

Exact by Dijkstra on up to three axes and four dims; on more, axes on which both ends agree stay as they are. Costs are parts of
the whole value, so searches are shared by all shapes that divide alike. One tree for several targets is tree.py's.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import lru_cache

from shardlang.plan.factorings import bridges
from shardlang.plan.moves import Space, State, Step, limits, parts_to_bytes, steps, to_layout, to_state
from shardlang.plan.plan import Move, MoveKind
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

EXACT_AXES, EXACT_DIMS = 3, 4
# A weight is parts * TIE + moves: among equally cheap chains the shortest. No chain has as many moves as TIE.
TIE = 64


@dataclass(frozen=True, slots=True)
class Route:
    """`moves`: each with the layout after it; empty where source is target. `cost`: bytes each rank sends, both ways."""

    moves: tuple[tuple[Move, Layout], ...]
    cost: int


class Engine:
    """The layouts of one space with their moves, found as they are needed; weights count backward only with `gradient`."""

    def __init__(self, space: Space, gradient: bool) -> None:
        self.space, self.gradient = space, gradient
        self.numbers: dict[State, int] = {}
        self.states: list[State] = []
        self._edges: list[list[tuple[int, int]] | None] = []
        self._searches: dict[int, Search] = {}

    def number(self, state: State) -> int:
        known = self.numbers.get(state)
        if known is None:
            known = self.numbers[state] = len(self.states)
            self.states.append(state)
            self._edges.append(None)
        return known

    def edges(self, node: int) -> list[tuple[int, int]]:
        """(neighbour, weight) of each move."""
        found = self._edges[node]
        if found is None:
            both = self.gradient
            found = self._edges[node] = [
                (self.number(s.to), (s.forward + s.backward if both else s.forward) * TIE + 1)
                for s in steps(self.states[node], self.space)
            ]
        return found

    def search(self, source: State) -> Search:
        node = self.number(source)
        if node not in self._searches:
            self._searches[node] = Search(self, ((0, node),))
        return self._searches[node]

    def step(self, before: int, after: int) -> Step:
        """The cheapest, then first, move between two neighbours."""
        to = self.states[after]
        both = self.gradient
        found = [s for s in steps(self.states[before], self.space) if s.to == to]
        return min(found, key=lambda s: s.forward + s.backward if both else s.forward)


class Search:
    """Dijkstra from one or more states, each at a given weight: runs on only as far as it is asked, and remembers."""

    def __init__(self, engine: Engine, seeds: tuple[tuple[int, int], ...]) -> None:
        self.engine = engine
        self.settled: dict[int, int] = {}
        self.before: dict[int, int] = {node: -1 for _, node in seeds}
        self._best = {node: weight for weight, node in reversed(seeds)}
        self._heap = [(weight, i, node) for i, (weight, node) in enumerate(seeds)]
        self._pushed = len(seeds)
        heapq.heapify(self._heap)

    def weight(self, target: State) -> int | None:
        """The least weight of a chain to `target`; None where no chain leads there."""
        node = self.engine.number(target)
        while node not in self.settled and self._heap:
            self._settle()
        return self.settled.get(node)

    def _settle(self) -> None:
        weight, _, node = heapq.heappop(self._heap)
        if node in self.settled:
            return
        self.settled[node] = weight
        best, heap = self._best, self._heap
        for other, more in self.engine.edges(node):
            total = weight + more
            known = best.get(other)
            if known is None or total < known:
                best[other] = total
                self.before[other] = node
                # Ties go by order of discovery, which depends on this search alone, so results never depend on history.
                self._pushed += 1
                heapq.heappush(heap, (total, self._pushed, other))

    def chain(self, target: State) -> list[int]:
        """The nodes of the chain that `weight` found, seed first."""
        node = self.engine.numbers[target]
        chain = [node]
        while (node := self.before[node]) >= 0:
            chain.append(node)
        return chain[::-1]


@lru_cache(maxsize=1024)
def engine(space: Space, gradient: bool) -> Engine:
    return Engine(space, gradient)


@dataclass(frozen=True, slots=True)
class Problem:
    """Layouts of one value on one mesh, without what need not change: axes all of them agree on, dims none of them cuts.

    axes: mesh axis numbers that take part; dims: tensor dims that do; prefixes: per tensor dim the axes cut off in front;
    still: the unchanging pending and replicated axes; whole_bytes / share: bytes that `space.whole` parts stand for.
    """

    mesh: Mesh
    mesh_index: int
    space: Space
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    prefixes: tuple[tuple[str, ...], ...]
    pending: tuple[str, ...]
    replicated: tuple[str, ...]
    whole_bytes: int
    share: int

    def state(self, layout: Layout) -> State:
        number = {a: i for i, a in enumerate(self.axes)}
        return State(
            tuple(tuple(number[a] for a in layout.dims[d] if a in number) for d in self.dims),
            sum(1 << number[a] for a in layout.pending if a in number),
            sum(1 << number[a] for a in layout.replicated if a in number),
        )

    def layout(self, state: State) -> Layout:
        dims = list(self.prefixes)
        for dim, axes in zip(self.dims, state.dims, strict=True):
            dims[dim] = dims[dim] + tuple(self.axes[a] for a in axes)
        part = to_layout(state, self.axes, self.mesh_index)
        order = [a.name for a in self.mesh.axes]
        return Layout(
            tuple(dims),
            tuple(sorted(self.pending + part.pending, key=order.index)),
            tuple(sorted(self.replicated + part.replicated, key=order.index)),
            self.mesh_index,
        )

    def bytes(self, parts: int) -> int:
        return parts_to_bytes(parts, self.space.whole * self.share, self.whole_bytes)

    def move(self, step: Step, gradient: bool) -> tuple[Move, Layout]:
        place = (*self.dims, -1)  # so that dim -1 stays -1
        axes = tuple(self.axes[a] for a in step.axes)
        backward = self.bytes(step.backward) if gradient else 0
        return Move(step.kind, axes, place[step.dim], place[step.from_dim], self.bytes(step.forward), backward), self.layout(step.to)


def problem(layouts: tuple[Layout, ...], shape: tuple[int, ...], itemsize: int, mesh: Mesh,
            uneven: frozenset[int]) -> Problem:
    """What a search among `layouts`, all on `mesh`, is about. Axes of size 1 take no part (see `relabel`)."""
    first = layouts[0]
    active = [a.name for a in mesh.axes if a.size > 1]
    prefixes: list[tuple[str, ...]] = [()] * len(shape)
    if len(active) > EXACT_AXES:
        prefixes = [_common_prefix([x.dims[d] for x in layouts]) for d in range(len(shape))]
        still = {a for axes in prefixes for a in axes}
        still |= {a for a in active if first.state(a) != "S" and all(x.state(a) == first.state(a) for x in layouts)}
        active = [a for a in active if a not in still]
    sizes = tuple(mesh.axis_size(a) for a in active)
    shares = [mesh.degree(p) for p in prefixes]
    left = tuple(n // s for n, s in zip(shape, shares, strict=True))
    room = limits(left, math.prod(sizes), uneven)
    dims = _dims_in_play(layouts, room, active)
    return Problem(
        mesh, first.mesh, Space(sizes, tuple(room[d] for d in dims)), tuple(active), dims, tuple(prefixes),
        tuple(a for a in first.pending if a not in active), tuple(a for a in first.replicated if a not in active),
        math.prod(shape) * itemsize, math.prod(shares),
    )


def _common_prefix(dims: list[tuple[str, ...]]) -> tuple[str, ...]:
    length = 0
    while all(len(axes) > length and axes[length] == dims[0][length] for axes in dims):
        length += 1
    return dims[0][:length]


def _dims_in_play(layouts: tuple[Layout, ...], room: tuple[int, ...], active: list[str]) -> tuple[int, ...]:
    """The dims that are cut somewhere, and others that can be, roomiest first, up to EXACT_DIMS in all."""
    used = {d for x in layouts for d, axes in enumerate(x.dims) if any(a in active for a in axes)}
    spare = sorted((d for d in range(len(room)) if d not in used and room[d] > 1), key=lambda d: (-room[d], d))
    return tuple(sorted([*used, *spare[: max(0, EXACT_DIMS - len(used))]]))


def relabel(layout: Layout, like: Layout, mesh: Mesh) -> Layout:
    """`layout` with its axes of size 1, along which all states are one, in the states they have in `like`."""
    unit = {a.name for a in mesh.axes if a.size == 1}
    if not unit:
        return layout
    order = [a.name for a in mesh.axes]
    dims = tuple(
        tuple(a for a in axes if a not in unit) + tuple(a for a in others if a in unit)
        for axes, others in zip(layout.dims, like.dims, strict=True)
    )
    # A dim that is the same but for where its unit axes stand is left alone.
    dims = tuple(
        others if tuple(a for a in others if a not in unit) == tuple(a for a in axes if a not in unit) else axes
        for axes, others in zip(dims, like.dims, strict=True)
    )
    merged = [
        tuple(sorted([*(a for a in mine if a not in unit), *(a for a in theirs if a in unit)], key=order.index))
        for mine, theirs in ((layout.pending, like.pending), (layout.replicated, like.replicated))
    ]
    return Layout(dims, merged[0], merged[1], layout.mesh)


VIEW = Move(MoveKind.VIEW, ())


class Router:
    """Routes and distances on the meshes of one plan, remembered."""

    def __init__(self, meshes: tuple[Mesh, ...]) -> None:
        self.meshes = meshes
        self._distances: dict[tuple[object, ...], int | None] = {}
        self._routes: dict[tuple[object, ...], Route | None] = {}

    def distance(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, gradient: bool,
                 uneven: frozenset[int] = frozenset()) -> int | None:
        """Bytes each rank sends, forward and (with `gradient`) backward; None where no chain leads to `target`."""
        if source is target:
            return 0
        key = (source, target, shape, itemsize, gradient, uneven)
        try:
            return self._distances[key]
        except KeyError:
            route = self.route(source, target, shape, itemsize, gradient, uneven)
            cost = self._distances[key] = None if route is None else route.cost
            return cost

    def route(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, gradient: bool,
              uneven: frozenset[int] = frozenset()) -> Route | None:
        key = (source, target, shape, itemsize, gradient, uneven)
        if key not in self._routes:
            find = self._same_mesh if source.mesh == target.mesh else self._across
            self._routes[key] = find(source, target, shape, itemsize, gradient, uneven)
        return self._routes[key]

    def _same_mesh(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, gradient: bool,
                   uneven: frozenset[int]) -> Route | None:
        if source == target:
            return Route((), 0)
        mesh = self.meshes[source.mesh]
        start = relabel(source, target, mesh)
        moves: list[tuple[Move, Layout]] = [] if start == source else [(VIEW, start)]
        about = problem((start, target), shape, itemsize, mesh, uneven)
        search = engine(about.space, gradient).search(about.state(start))
        weight = search.weight(about.state(target))
        if weight is None:
            return None
        moves += chain_moves(about, search, about.state(target), gradient)
        return Route(tuple(moves), about.bytes(weight // TIE))

    def _across(self, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, gradient: bool,
                uneven: frozenset[int]) -> Route | None:
        """Through the layout that means the same on both meshes which makes the whole way cheapest."""
        here, there = self.meshes[source.mesh], self.meshes[target.mesh]
        best: tuple[tuple[int, int], Route] | None = None
        for out, into in bridges(here, there, shape, uneven, source.mesh, target.mesh):
            first = self.route(source, out, shape, itemsize, gradient, uneven)
            if first is None or (best and first.cost > best[0][0]):
                continue
            second = self.route(into, target, shape, itemsize, gradient, uneven)
            if second is None:
                continue
            found = Route((*first.moves, (VIEW, into), *second.moves), first.cost + second.cost)
            rank = (found.cost, len(found.moves))
            if best is None or rank < best[0]:
                best = rank, found
        return None if best is None else best[1]


def chain_moves(about: Problem, search: Search, target: State, gradient: bool) -> list[tuple[Move, Layout]]:
    nodes = search.chain(target)
    return [about.move(search.engine.step(a, b), gradient) for a, b in zip(nodes, nodes[1:], strict=False)]


@lru_cache(maxsize=64)
def _equal_router(meshes: tuple[Mesh, ...]) -> Router:
    return Router(meshes)


_LAST: list[Router] = [Router(())]


def router(meshes: tuple[Mesh, ...]) -> Router:
    """The remembered router of these meshes. The last one is kept at hand: hashing meshes costs more than a look-up."""
    if _LAST[0].meshes is not meshes:
        found = _equal_router(meshes)
        _LAST[0] = found if found.meshes is meshes else found
    return _LAST[0]


def route(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, meshes: tuple[Mesh, ...], gradient: bool,
          uneven: frozenset[int] = frozenset()) -> Route | None:
    """The cheapest chain of moves, then the shortest; None where none is legal."""
    return router(meshes).route(source, target, shape, itemsize, gradient, uneven)


def distance(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, meshes: tuple[Mesh, ...],
             gradient: bool, uneven: frozenset[int] = frozenset()) -> int | None:
    """The cost of `route` in bytes per rank, None where there is none."""
    return router(meshes).distance(source, target, shape, itemsize, gradient, uneven)
