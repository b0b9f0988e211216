"""One tree of conversions for all users of a value: each edge is a move that runs once, and its
dual once.

Turns the layout a value is produced in and the layouts its users take into the cheapest tree (a
Steiner arborescence) that reaches them all. Which layouts users take is the planner's; single
chains are cheapest.py's."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import permutations

from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Move
from shardlang.plan.redistribute import along_time
from shardlang.plan.redistribute.cheapest import Router, router, search_space
from shardlang.plan.redistribute.collective_bytes import BitLayout, RoutedValue
from shardlang.plan.redistribute.searches import EXACT_AXES, Search, engine
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

MOST_ORDERED, MOST_EXACT = 4, 4


@dataclass(frozen=True, slots=True)
class Target:
    """A layout some user takes; gradient: whether a gradient comes back from it."""

    layout: Layout
    gradient: bool = True


@dataclass(frozen=True, slots=True)
class Edge:
    """From edge `parent` (-1: the value as produced) by `move` to `to`; gradient: its dual runs."""

    parent: int
    move: Move
    to: Layout
    gradient: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """edges: parents before children. ends: per target its edge, or -1: the value as produced."""

    edges: tuple[Edge, ...]
    ends: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Bytes each rank sends, forward and backward."""
        return sum(e.move.forward_bytes + e.move.backward_bytes for e in self.edges)


def tree(source: Layout, targets: Sequence[Target], value: RoutedValue, meshes: tuple[Mesh, ...]) -> Tree | None:
    """The cheapest tree that reaches every target, then the one with fewest moves; None where some
    target has no route.

    Users without gradient hang off it where that is cheapest, without duals. Exact for those with
    gradient (or, where there is none, for all) up to MOST_EXACT of them, on one mesh of up to three
    axes; else the best order of sharing."""
    time, routes = along_time.times_of(meshes), router(meshes)
    if time is not None and all(along_time.same(source, t.layout, time[0]) for t in targets):
        return _alike_in_time(source, targets, value, meshes, *time)
    distinct = list(dict.fromkeys(sorted(targets, key=lambda t: not t.gradient)))
    first = [t for t in distinct if t.gradient] or distinct
    edges = _best_order(routes, value, source, first)
    if edges is None:
        return None
    if time is None and 2 <= len([t for t in first if t.layout != source]) <= MOST_EXACT:
        edges = _exact(value, source, first, edges, meshes) or edges
    ends = {t: _attach(routes, value, edges, source, t) for t in distinct}
    if any(end is None for end in ends.values()):
        return None
    return Tree(tuple(edges), tuple(end for t in targets if (end := ends[t]) is not None))


def _alike_in_time(
    source: Layout, targets: Sequence[Target], value: RoutedValue, meshes: tuple[Mesh, ...], axis: str, count: int
) -> Tree | None:
    """The tree of one microbatch's part over the ranks, with the bytes of all microbatches."""
    wants = [Target(along_time.without(t.layout, axis), t.gradient) for t in targets]
    ranks = tuple(m.timeless for m in meshes)
    found = tree(along_time.without(source, axis), wants, along_time.part(value, source, axis, count), ranks)
    if found is None:
        return None
    moves = along_time.scaled(tuple((e.move, e.to) for e in found.edges), source, axis, count)
    edges = [Edge(e.parent, move, to, e.gradient) for e, (move, to) in zip(found.edges, moves, strict=True)]
    return Tree(tuple(edges), found.ends)


def _attach(routes: Router, value: RoutedValue, edges: list[Edge], source: Layout, target: Target) -> int | None:
    """Adds the cheapest way from the tree to `target`; its last edge, or None without one."""
    best: tuple[int, int] | None = None
    for at in range(-1, len(edges)):
        if target.gradient and at >= 0 and not edges[at].gradient:
            continue
        here = edges[at].to if at >= 0 else source
        if here == target.layout:
            return at
        cost = routes.distance(here, target.layout, value, target.gradient)
        if cost is not None and (best is None or cost < best[0]):
            best = cost, at
    if best is None:
        return None
    at = best[1]
    found = routes.route(edges[at].to if at >= 0 else source, target.layout, value, target.gradient)
    assert found is not None
    for move, to in found.moves:
        edges.append(Edge(at, move, to, target.gradient))
        at = len(edges) - 1
    return at


def _best_order(routes: Router, value: RoutedValue, source: Layout, targets: list[Target]) -> list[Edge] | None:
    """Targets joined one by one, by the cheapest route from the tree, in the best order tried."""
    best: list[Edge] | None = None
    for order in _orders(targets):
        edges: list[Edge] = []
        if any(_attach(routes, value, edges, source, t) is None for t in order):
            return None
        if best is None or _rank(edges) < _rank(best):
            best = edges
    return best


def _orders(targets: list[Target]) -> list[tuple[Target, ...]]:
    if len(targets) <= MOST_ORDERED:
        return list(permutations(targets))
    turned = [(*targets[i:], *targets[:i]) for i in range(len(targets))]
    return [*turned, *(t[::-1] for t in turned)]


def _rank(edges: list[Edge]) -> tuple[int, int]:
    return sum(e.move.forward_bytes + e.move.backward_bytes for e in edges), len(edges)


def _exact(
    value: RoutedValue, source: Layout, targets: list[Target], bound: list[Edge], meshes: tuple[Mesh, ...]
) -> list[Edge] | None:
    """The cheapest tree, by Dreyfus and Wagner's dynamic programme; None if not below `bound`."""
    layouts = [source, *(t.layout for t in targets)]
    mesh, gradient = meshes[source.mesh], targets[0].gradient
    units = any(a.size == 1 for a in mesh.axes)
    if units or any(x.mesh != source.mesh for x in layouts):
        return None
    about = search_space(tuple(layouts), value, mesh)
    if len(about.axes) > EXACT_AXES:
        return None
    search = engine(about.space).search(about.state(source), gradient)
    found = _steiner(search, tuple(about.state(t.layout) for t in targets))
    edges: list[Edge] = []
    at = {search.engine.number(about.state(source)): -1}
    for before, after in found:
        move, to = about.move(search.engine.step(before, after, gradient), gradient)
        edges.append(Edge(at[before], move, to, gradient))
        at[after] = len(edges) - 1
    return edges if _rank(edges) < _rank(bound) else None


def _steiner(search: Search, targets: tuple[BitLayout, ...]) -> list[tuple[int, int]]:
    """The edges of the cheapest tree from the search's source, parents first. Remembered."""
    key = (search.source, search.gradient, targets)
    known = search.engine.trees.get(key)
    if known is None:
        known = search.engine.trees[key] = Programme(search, targets).edges()
    return known


class Programme:
    """Dreyfus and Wagner: per set of targets and node, the least weight of a tree from the node
    that reaches the set.

    A tree from a node either goes on by one move, or splits the set in two. Only nodes are looked
    at from which the set can be reached, by way of the source, within the weight of separate
    chains."""

    def __init__(self, search: Search, targets: tuple[BitLayout, ...]) -> None:
        self.source = search.source
        self.nodes = [search.engine.number(t) for t in targets]
        weights = [search.weight(t) for t in targets]
        self.bound = sum(w for w in weights if w is not None)
        self.near = search.within(self.bound)
        self.into: dict[int, list[tuple[int, int]]] = {node: [] for node in self.near}
        for node in self.near:
            for other, weight in search.engine.edges(node, search.gradient):
                if other in self.near:
                    self.into[other].append((node, weight))
        self.best: list[dict[int, int]] = [{}]
        self.by: list[dict[int, tuple[bool, int]]] = [{}]  # (True, half of the set) or (False, next node)

    def edges(self) -> list[tuple[int, int]]:
        for members in range(1, 1 << len(self.nodes)):
            self._reach(members)
        found: list[tuple[int, int]] = []
        self._collect((1 << len(self.nodes)) - 1, self.source, found)
        # Two halves that share a move have it once; a node has one parent, the one found first.
        first: dict[int, int] = {}
        for before, after in found:
            first.setdefault(after, before)
        return [(before, after) for after, before in first.items() if after != self.source]

    def _reach(self, members: int) -> None:
        best, by = self._halves(members)
        if members & (members - 1) == 0:
            best = {self.nodes[members.bit_length() - 1]: 0}
        heap = [(weight, i, node) for i, (node, weight) in enumerate(best.items())]
        heapq.heapify(heap)
        done: dict[int, int] = {}
        pushed = len(heap)
        while heap:
            weight, _, node = heapq.heappop(heap)
            if node in done or weight + self.near[node] > self.bound:
                continue
            done[node] = weight
            for other, more in self.into[node]:
                total = weight + more
                if other not in done and (other not in best or total < best[other]):
                    best[other], by[other] = total, (False, node)
                    pushed += 1
                    heapq.heappush(heap, (total, pushed, other))
        self.best.append(done)
        self.by.append(by)

    def _halves(self, members: int) -> tuple[dict[int, int], dict[int, tuple[bool, int]]]:
        best: dict[int, int] = {}
        by: dict[int, tuple[bool, int]] = {}
        half = (members - 1) & members
        while half > members ^ half:
            other = self.best[members ^ half]
            for node, weight in self.best[half].items():
                total = weight + other[node] if node in other else None
                if total is not None and (node not in best or total < best[node]):
                    best[node], by[node] = total, (True, half)
            half = (half - 1) & members
        return best, by

    def _collect(self, members: int, node: int, found: list[tuple[int, int]]) -> None:
        while (step := self.by[members].get(node)) is not None:
            split, which = step
            if split:
                self._collect(members ^ which, node, found)
                members = which
            else:
                found.append((node, which))
                node = which
