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
        while (left := self.distances(sink))[source] >= 0:
            flow += self._blocking(source, sink, left)
        return flow

    def distances(self, sink: int) -> list[int]:
        """Edges with room from each node to the sink, or -1: after `run`, what is not -1 is the
        smallest sink side of a cut."""
        found = [-1] * len(self.edges)
        found[sink] = 0
        waiting = [sink]
        for node in waiting:
            for e in self.edges[node]:
                if found[self.head[e]] < 0 and self.room[e ^ 1]:
                    found[self.head[e]] = found[node] + 1
                    waiting.append(self.head[e])
        return found

    def _blocking(self, source: int, sink: int, left: list[int]) -> int:
        """A blocking flow along edges that come nearer to the sink, depth first without
        recursion."""
        following = [0] * len(self.edges)
        path: list[int] = []
        node, flow = source, 0
        while True:
            if node == sink:
                flow += self._push(path)
                full = next(i for i, e in enumerate(path) if not self.room[e])
                node = self.head[path[full] ^ 1]
                del path[full:]
            elif (e := self._nearer(node, left, following)) >= 0:
                path.append(e)
                node = self.head[e]
            elif path:
                node = self.head[path.pop() ^ 1]
                following[node] += 1
            else:
                return flow

    def _nearer(self, node: int, left: list[int], following: list[int]) -> int:
        """The next edge of a node that leads nearer to the sink, or -1."""
        edges, head, room = self.edges[node], self.head, self.room
        for i in range(following[node], len(edges)):
            if room[edges[i]] and left[head[edges[i]]] == left[node] - 1:
                following[node] = i
                return edges[i]
        following[node] = len(edges)
        return -1

    def _push(self, path: list[int]) -> int:
        amount = min([self.room[e] for e in path])
        for e in path:
            self.room[e] -= amount
            self.room[e ^ 1] += amount
        return amount


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
    replicated = [left >= 0 for left in network.distances(sink)]
    return cost, tuple(replicated[:operators])
