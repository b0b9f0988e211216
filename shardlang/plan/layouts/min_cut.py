"""I or R for operators that are not split along an axis: the cheapest labels, by minimum cut.

Turns undecided values, with what it costs to serve their fixed users, into the label of each
operator. Pure integers; which operators are undecided, and the costs, are the planner's."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.frozen.records import dataclass


@dataclass(frozen=True, slots=True)
class CutValue:
    """A value that an undecided operator may read or make, along one axis.

    producer: the number of the undecided operator that makes it, or -1 where its layout is fixed.
    consumers: the undecided operators that read it (any order).
    low: cost of serving its fixed users alone, `A` (made as I where the producer is undecided);
    high: cost of serving them and R besides, `B`; at least `low`."""

    producer: int
    consumers: tuple[int, ...]
    low: int
    high: int


class Network:
    """A flow network for Dinic's algorithm, in flat lists: edge e to `head[e]`, reverse e ^ 1."""

    def __init__(self, nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.head: list[int] = []
        self.room: list[int] = []

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def add(self, tail: int, head: int, capacity: int) -> None:
        self.edges[tail].append(len(self.head))
        self.edges[head].append(len(self.head) + 1)
        self.head += (head, tail)
        self.room += (capacity, 0)

    def run(self, source: int, sink: int) -> int:
        """The greatest flow; afterwards `room` is the residual capacity."""
        flow = 0
        while True:
            levels = self.levels(source, sink)
            if levels[sink] < 0:
                return flow
            flow += self._blocking(source, sink, levels)

    def levels(self, source: int, sink: int = -1) -> list[int]:
        """Distance from the source over edges with room, or -1; stops after the sink's level."""
        levels = [-1] * len(self.edges)
        levels[source] = 0
        frontier = [source]
        while frontier and (sink < 0 or levels[sink] < 0):
            frontier = self._next_level(frontier, levels)
        return levels

    def _next_level(self, frontier: list[int], levels: list[int]) -> list[int]:
        head, room, reached = self.head, self.room, []
        for node in frontier:
            for e in self.edges[node]:
                if room[e] and levels[head[e]] < 0:
                    levels[head[e]] = levels[node] + 1
                    reached.append(head[e])
        return reached

    def reaching(self, sink: int) -> list[bool]:
        """The nodes with room left to the sink: after `run`, the smallest sink side of a cut."""
        reached = [False] * len(self.edges)
        reached[sink] = True
        stack = [sink]
        while stack:
            for e in self.edges[stack.pop()]:
                tail = self.head[e]
                if self.room[e ^ 1] and not reached[tail]:
                    reached[tail] = True
                    stack.append(tail)
        return reached

    def _blocking(self, source: int, sink: int, levels: list[int]) -> int:
        """A blocking flow in the level graph, by depth-first search without recursion."""
        following = [0] * len(self.edges)
        path: list[int] = []
        node, flow = source, 0
        while True:
            if node == sink:
                flow += self._push(path)
                path, node = self._retreat_to_room(path, source)
                continue
            e = self._advance(node, levels, following)
            if e >= 0:
                path.append(e)
                node = self.head[e]
                continue
            if not path:
                return flow
            levels[node] = -1
            node = self.head[path.pop() ^ 1]

    def _advance(self, node: int, levels: list[int], following: list[int]) -> int:
        edges, head, room = self.edges[node], self.head, self.room
        i, below = following[node], levels[node] + 1
        while i < len(edges):
            e = edges[i]
            if room[e] and levels[head[e]] == below:
                following[node] = i
                return e
            i += 1
        following[node] = i
        return -1

    def _push(self, path: list[int]) -> int:
        amount = min([self.room[e] for e in path])
        for e in path:
            self.room[e] -= amount
            self.room[e ^ 1] += amount
        return amount

    def _retreat_to_room(self, path: list[int], source: int) -> tuple[list[int], int]:
        """After a push: the path up to its first full edge, and the node there."""
        for i, e in enumerate(path):
            if not self.room[e]:
                return path[:i], self.head[e ^ 1]
        return path, source


def decide(operators: int, choices: Sequence[CutValue]) -> tuple[int, tuple[bool, ...]]:
    """The least total cost and, per operator, whether it is labelled R.

    Cost counted: per choice, `low`, or `high` if some consumer is R; but nothing where the producer
    is undecided and is itself R, whose users take R as it is. Among equally cheap labellings it is
    the one with the fewest R, which is unique."""
    network = Network(operators + 2)
    source, sink = operators, operators + 1
    endless = 1 + sum(c.high for c in choices)
    base = 0
    for choice in choices:
        more = choice.high - choice.low
        decided = choice.producer < 0
        base += choice.low if decided else 0
        if not decided and choice.low:
            network.add(choice.producer, sink, choice.low)
        if not more or not choice.consumers:
            continue
        tail = source if decided else choice.producer
        if len(choice.consumers) == 1:
            network.add(tail, choice.consumers[0], more)
            continue
        joint = network.node()
        network.add(tail, joint, more)
        for consumer in choice.consumers:
            network.add(joint, consumer, endless)
    cost = base + network.run(source, sink)
    replicated = network.reaching(sink)
    return cost, tuple(replicated[:operators])
