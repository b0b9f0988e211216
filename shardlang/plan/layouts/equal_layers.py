"""Whether what is planned for a run of equal layers, which a graph may hold once, is what planning
each of them would give.

A pass over the operators looks no further than the layers beside one. So where the layer before a
run, the run and the layer after it get the same from each pass, each layer of the run gets it too.
Elsewhere SingleLayers says that the graph must hold each layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph
from shardlang.ops.families.internal import TRANSFER
from shardlang.paths.patterns import RUN, SingleLayers, indexes


@dataclass(frozen=True)
class LayerRun:
    """A call of a run of layers. ops: its operators, with the same of the layer before, and of the
    layer after. array, layers: where it is."""

    ops: Sequence[tuple[int, int, int]]
    array: str
    layers: range

    @cached_property
    def after(self) -> Mapping[int, int]:
        """Operator of the layer after -> the same of the run."""
        return {after: op for op, _, after in self.ops}


def _place(path: str) -> tuple[str, range]:
    """`net.blocks[2-19]` -> the array, and which of its layers."""
    array, _, index = path[:-1].rpartition("[")
    return array, indexes(index)


@dataclass(frozen=True)
class EqualLayers:
    """The runs of a graph."""

    graph: Graph

    @cached_property
    def runs(self) -> Mapping[int, LayerRun]:
        """The last operator of a run -> the run."""
        beside = self._beside() if self.graph.in_runs else []
        ops: dict[int, list[int]] = {at: [] for each in beside for at in each}
        for op in self.graph.ops if ops else ():
            for call in self._around(op.within) if op.operator != TRANSFER else ():
                if call in ops:
                    ops[call].append(op.id)
        rows = [(made[0], [ops[call] for call in made]) for made in beside]
        if any(len({*map(len, row)}) > 1 or row[0] != [*range(row[0][0], row[0][0] + len(row[0]))] for _, row in rows):
            raise SingleLayers
        return {row[0][-1]: LayerRun([*zip(*row, strict=True)], *_place(self.graph.calls[at].path)) for at, row in rows}

    def _beside(self) -> list[tuple[int, int, int]]:
        """The calls of runs, with those of the layers before and after each."""
        found, last = list[tuple[int, int, int]](), dict[tuple[int, str], int]()
        waiting: dict[tuple[int, str], tuple[int, int]] = {}
        for at, made in enumerate(self.graph.calls):
            here = made.within, made.path
            if here in waiting:
                found.append((*waiting.pop(here), at))
            last[here] = at
            if made.path.endswith("]") and RUN.match(made.path, made.path.rindex("[")):
                array, layers = _place(made.path)
                before = last[made.within, f"{array}[{layers.start - 1}]"]
                waiting[made.within, f"{array}[{layers.stop}]"] = at, before
        return found

    def _around(self, call: int) -> Iterator[int]:
        """A call and those that it is made in."""
        while call >= 0:
            yield call
            call = self.graph.calls[call].within

    def same(self, found: Sequence[object]) -> None:
        """SingleLayers unless a pass found the same for each run as for the layers beside it: where
        the last of an array is another one, apart from that. found: by operator."""
        for run in self.runs.values():
            for op, before, after in run.ops:
                if found[op] != found[before]:
                    raise SingleLayers
                if found[op] != found[after]:
                    raise SingleLayers({run.array: frozenset((run.layers.stop,))})

    def outside(self, ops: Collection[int]) -> None:
        """SingleLayers where one of these operators is in a run."""
        if any(op in ops for run in self.runs.values() for op, _, _ in run.ops):
            raise SingleLayers

    @cached_property
    def shared(self) -> frozenset[tuple[int, int]]:
        """Operators of runs, and positions, that read what is made outside of these layers: each
        layer reads it."""
        found, producers = set[tuple[int, int]](), self.graph.producers
        for run in self.runs.values():
            near = {at for op, before, _ in run.ops for at in (op, before)}
            reads = ((op, at, value) for op, _, _ in run.ops for at, value in enumerate(self.graph.ops[op].operands))
            found.update((op, at) for op, at, value in reads if producers.get(value, op) not in near)
        return frozenset(found)
