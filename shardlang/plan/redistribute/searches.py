"""The layouts of a space and their moves -> the least that leads from one to others, by Dijkstra.

Spaces are collective_bytes.py's: axes and dims have numbers, costs are parts of the whole value. So
a search serves all values that divide alike."""

from __future__ import annotations

import heapq
import math
from functools import lru_cache

from shardlang.plan.redistribute.collective_bytes import BitLayout, Bundle, Hop, Space, bundles, steps

# The most axes of which all layouts are searched; of more, how many of them, the nearest first.
EXACT_AXES, SEARCHED = 3, 300
# A weight is parts * TIE + moves: among equally cheap chains the shortest. No chain has as many
# moves as TIE.
TIE = 64

Edges = list[tuple[int, int]]


class Engine:
    """The layouts of one space and their moves, found as they are needed. basic: without the moves
    that others make up (collective_bytes.py).

    Limits take layouts away and no move between two that are left. So spaces of few axes that
    differ in limits alone share their moves, those of the space without limits."""

    def __init__(self, space: Space, basic: bool = False) -> None:
        free = Space(space.sizes, (space.ranks,) * len(space.limits), space.uneven)
        shares = len(space.sizes) <= EXACT_AXES and space != free
        self.space, self.basic, self._free = space, basic, engine(free, basic) if shares else None
        self.numbers: dict[BitLayout, int] = self._free.numbers if self._free else {}
        self.states: list[BitLayout] = self._free.states if self._free else []
        self._moves: dict[int, list[tuple[int, int, int]]] = {}
        self._edges: dict[tuple[int, bool], Edges] = {}
        self._legal: dict[int, bool] = {}
        self._hops: dict[tuple[int, int, bool], Hop] = {}
        self._searches: dict[tuple[int, bool], Search] = {}
        self.trees: dict[tuple[int, bool, tuple[BitLayout, ...]], list[tuple[int, int]]] = {}

    def number(self, state: BitLayout) -> int:
        known = self.numbers.get(state)
        if known is None:
            known = self.numbers[state] = len(self.states)
            self.states.append(state)
        return known

    def edges(self, node: int, gradient: bool) -> Edges:
        """(neighbour, weight) of each move; backward counts with `gradient` only."""
        known = self._edges.get((node, gradient))
        if known is None:
            shared, legal = self._free, self.legal
            if shared is not None and legal(node):
                known = [each for each in shared.edges(node, gradient) if legal(each[0])]
            elif gradient:
                known = [(to, (forward + backward) * TIE + 1) for to, forward, backward in self.moves(node)]
            else:
                known = [(to, forward * TIE + 1) for to, forward, _ in self.moves(node)]
            self._edges[node, gradient] = known
        return known

    def moves(self, node: int) -> list[tuple[int, int, int]]:
        """(neighbour, parts forward, parts backward) of each move."""
        known = self._moves.get(node)
        if known is None:
            hops = steps(self.states[node], self.space, self.basic)
            known = self._moves[node] = [(self.number(hop.to), hop.forward, hop.backward) for hop in hops]
        return known

    def legal(self, node: int) -> bool:
        """Whether the axes of each dim divide its limit."""
        known = self._legal.get(node)
        if known is None:
            cuts = zip(self.states[node].dims, self.space.limits, strict=True)
            known = self._legal[node] = all([limit % self.space.degree(axes) == 0 for axes, limit in cuts])
        return known

    def search(self, source: BitLayout, gradient: bool) -> Search:
        key = self.number(source), gradient
        if key not in self._searches:
            few = len(self.space.sizes) <= EXACT_AXES
            self._searches[key] = Search(self, *key) if few else Nearest(self, *key)
        return self._searches[key]

    def step(self, before: int, after: int, gradient: bool) -> Hop:
        """The cheapest, then first, move between two neighbours."""
        key, to = (before, after, gradient), self.states[after]
        if key not in self._hops:
            found = [s for s in steps(self.states[before], self.space) if s.to == to]
            self._hops[key] = min(found, key=lambda s: s.forward + s.backward if gradient else s.forward)
        return self._hops[key]


class Search:
    """Dijkstra from one state: runs on only as far as it is asked, and remembers."""

    def __init__(self, engine: Engine, source: int, gradient: bool) -> None:
        self.engine, self.source, self.gradient = engine, source, gradient
        self.settled: dict[int, int] = {}
        self.before: dict[int, int] = {source: -1}
        self._best = {source: 0}
        self._heap = [(0, 0, source)]
        self._pushed = 0

    def weight(self, target: BitLayout) -> int | None:
        """The least weight of a chain to `target`; None if there is none within the limit."""
        node = self.engine.number(target)
        most = SEARCHED if len(self.engine.space.sizes) > EXACT_AXES else math.inf
        while node not in self.settled and self.more and len(self.settled) < most:
            self._settle()
        if len(self.settled) >= most:
            self.end()
        return self.settled.get(node)

    def within(self, weight: int) -> dict[int, int]:
        """The nodes at most `weight` away, with their distances."""
        while self.more and self._heap[0][0] <= weight:
            self._settle()
        return {node: w for node, w in self.settled.items() if w <= weight}

    @property
    def more(self) -> bool:
        """Whether anything is left to be settled."""
        return bool(self._heap)

    def end(self) -> None:
        """No more will be settled: what waits is let go."""
        self._heap.clear()

    def _settle(self) -> None:
        weight, _, node = heapq.heappop(self._heap)
        if node in self.settled:
            return
        self.settled[node] = weight
        best, heap = self._best, self._heap
        for other, more in self.engine.edges(node, self.gradient):
            total = weight + more
            known = best.get(other)
            if known is None or total < known:
                best[other] = total
                self.before[other] = node
                # Ties go by order of discovery, which depends on this search alone, so results
                # never depend on history.
                self._pushed += 1
                heapq.heappush(heap, (total, self._pushed, other))

    def chain(self, target: BitLayout) -> list[int]:
        """The nodes of the chain that `weight` found, seed first."""
        node = self.engine.numbers[target]
        chain = [node]
        while (node := self.before[node]) >= 0:
            chain.append(node)
        return chain[::-1]


class Nearest(Search):
    """The same for spaces of many moves, of which few are needed: those that send alike wait as
    one, and are made when it is their turn. Nodes are settled in the same order."""

    def __init__(self, engine: Engine, source: int, gradient: bool) -> None:
        super().__init__(engine, source, gradient)
        start = (0, -1, 0, 0)
        self._least = {source: start}
        self._place: dict[int, int] = {}
        self._waiting: list[tuple[tuple[int, int, int, int], int, Bundle | None]] = [(start, source, None)]

    @property
    def more(self) -> bool:
        return bool(self._waiting)

    def end(self) -> None:
        self._waiting.clear()
        self._least.clear()

    def _settle(self) -> None:
        (weight, expansion, index, _), node, bundle = heapq.heappop(self._waiting)
        if bundle is not None:
            self._make((weight, expansion, index), node, bundle)
        elif node not in self.settled:
            # Ties go by the order in which nodes are settled, then by that of their moves.
            place = self._place[node] = len(self.settled)
            self.settled[node] = weight
            for index, bundle in enumerate(bundles(self.engine.states[node], self.engine.space)):
                forward, backward = bundle.sent
                total = weight + (forward + backward * self.gradient) * TIE + 1
                heapq.heappush(self._waiting, ((total, place, index, 0), node, bundle))

    def looked(self, target: BitLayout) -> int:
        """How many layouts are looked at until this one is found, or to see that it is not."""
        return self._place.get(self.engine.numbers[target], len(self.settled) - 1) + 1

    def _make(self, rank: tuple[int, int, int], node: int, bundle: Bundle) -> None:
        """Makes the moves of a bundle, which begins at a node."""
        number, least = self.engine.number, self._least
        for at, hop in enumerate(bundle.hops()):
            other, key = number(hop.to), (*rank, at)
            if other not in least or key < least[other]:
                least[other], self.before[other] = key, node
                heapq.heappush(self._waiting, (key, other, None))


@lru_cache(maxsize=256)
def engine(space: Space, basic: bool = False) -> Engine:
    return Engine(space, basic)
