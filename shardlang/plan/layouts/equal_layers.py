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
from shardlang.paths.patterns import RUN, SingleLayers, count, indexes


@dataclass(frozen=True)
class LayerRun:
    """A call of a run of layers. ops: its operators, with the same of the layer before, and of the
    layer after. times: how many layers it is."""

    ops: Sequence[tuple[int, int, int]]
    times: int

    @cached_property
    def after(self) -> Mapping[int, int]:
        """Operator of the layer after -> the same of the run."""
        return {after: op for op, _, after in self.ops}


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
            for call in self._around(op.within):
                if call in ops:
                    ops[call].append(op.id)
        rows = [(made[0], [ops[call] for call in made]) for made in beside]
        if any(len({*map(len, row)}) > 1 or row[0] != [*range(row[0][0], row[0][0] + len(row[0]))] for _, row in rows):
            raise SingleLayers
        times = (count(self.graph.calls[call].path) for call, _ in rows)
        return {row[0][-1]: LayerRun([*zip(*row, strict=True)], n) for (_, row), n in zip(rows, times, strict=True)}

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
                array, _, index = made.path[:-1].rpartition("[")
                layers = indexes(index)
                before = last[made.within, f"{array}[{layers.start - 1}]"]
                waiting[made.within, f"{array}[{layers.stop}]"] = at, before
        return found

    def _around(self, call: int) -> Iterator[int]:
        """A call and those that it is made in."""
        while call >= 0:
            yield call
            call = self.graph.calls[call].within

    def same(self, found: Sequence[object]) -> None:
        """SingleLayers unless a pass found the same for each run as for the layers beside it.
        found: by operator."""
        for op, before, after in (row for run in self.runs.values() for row in run.ops):
            if not found[before] == found[op] == found[after]:
                raise SingleLayers

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
