"""One tree of conversions for all users of a value: each edge is a move that runs once, and its dual once.

Turns the layout a value is produced in and the layouts its users take into the cheapest tree (a Steiner arborescence) that
reaches them all. Which layouts users take is the planner's; single chains are routes.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from shardlang.plan.plan import Move
from shardlang.plan.routes import Router, router
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

MOST_ORDERED = 4


@dataclass(frozen=True, slots=True)
class Target:
    """A layout some user takes; gradient: whether a gradient comes back from it."""

    layout: Layout
    gradient: bool = True


@dataclass(frozen=True, slots=True)
class Edge:
    """From edge `parent` (-1: the value as produced) by `move` to layout `to`; gradient: whether its dual runs."""

    parent: int
    move: Move
    to: Layout
    gradient: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """edges: parents before children. ends: per target, in the order given, its edge, or -1 for the value as produced."""

    edges: tuple[Edge, ...]
    ends: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Bytes each rank sends, forward and backward."""
        return sum(e.move.forward_bytes + e.move.backward_bytes for e in self.edges)


@dataclass(frozen=True, slots=True)
class Value:
    """What routes ask about a value, besides its layouts."""

    router: Router
    shape: tuple[int, ...]
    itemsize: int
    uneven: frozenset[int]

    def attach(self, edges: list[Edge], source: Layout, target: Target) -> int | None:
        """Adds the cheapest way from the tree to `target`; its last edge, or None where there is no way."""
        best: tuple[int, int] | None = None
        for at in range(-1, len(edges)):
            if target.gradient and at >= 0 and not edges[at].gradient:
                continue
            here = edges[at].to if at >= 0 else source
            if here == target.layout:
                return at
            cost = self.router.distance(here, target.layout, self.shape, self.itemsize, target.gradient, self.uneven)
            if cost is not None and (best is None or cost < best[0]):
                best = cost, at
        if best is None:
            return None
        at = best[1]
        here = edges[at].to if at >= 0 else source
        found = self.router.route(here, target.layout, self.shape, self.itemsize, target.gradient, self.uneven)
        assert found is not None
        for move, to in found.moves:
            edges.append(Edge(at, move, to, target.gradient))
            at = len(edges) - 1
        return at


def tree(source: Layout, targets: Sequence[Target], shape: tuple[int, ...], itemsize: int, meshes: tuple[Mesh, ...],
         uneven: frozenset[int] = frozenset()) -> Tree | None:
    """The cheapest tree that reaches every target, then the one with fewest moves; None where some target has no route.

    Users without gradient hang off it where that is cheapest, without duals.
    """
    value = Value(router(meshes), shape, itemsize, uneven)
    distinct = list(dict.fromkeys(sorted(targets, key=lambda t: not t.gradient)))
    trained = [t for t in distinct if t.gradient]
    best: list[Edge] | None = None
    for order in _orders(trained):
        edges: list[Edge] = []
        if any(value.attach(edges, source, t) is None for t in order):
            continue
        if best is None or _rank(edges) < _rank(best):
            best = edges
    if best is None:
        return None
    ends = {t: value.attach(best, source, t) for t in distinct}
    if None in ends.values():
        return None
    return Tree(tuple(best), tuple(ends[t] or 0 if ends[t] != -1 else -1 for t in targets))


def _orders(targets: list[Target]) -> list[tuple[Target, ...]]:
    return list(permutations(targets)) if len(targets) <= MOST_ORDERED else [tuple(targets), tuple(reversed(targets))]


def _rank(edges: list[Edge]) -> tuple[int, int]:
    return sum(e.move.forward_bytes + e.move.backward_bytes for e in edges), len(edges)
