"""The arrays of layers of a program, of which a graph tells runs of equal layers once."""

from __future__ import annotations

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, GraphValue
from shardlang.paths.patterns import count


@dataclass(frozen=True)
class ArrayOfLayers:
    """An array of layers: its path, and how many there are. equal: whether a run of them is told
    once."""

    path: str
    count: int
    equal: bool

    @property
    def paths(self) -> tuple[str, ...]:
        """Those of its layers."""
        return tuple(f"{self.path}[{at}]" for at in range(self.count))

    def handed(self, graph: Graph) -> list[GraphValue]:
        """The values that the first layer hands to the second, which are never in a run."""
        layer = {op.id: f"{graph.calls[op.within].path}." for op in graph.ops if op.within >= 0}
        inside = ([op for op in graph.ops if layer.get(op.id, "").startswith(f"{path}.")] for path in self.paths[:2])
        first, second = inside
        read = {v for op in second for v in op.operands}
        return [graph.values[v] for op in first for v in op.results if v in read]


def arrays(graph: Graph) -> list[ArrayOfLayers]:
    """The outermost arrays of more than three layers, each called once."""
    found: dict[str, list[str]] = {}
    for call in graph.calls:
        array, _, _ = call.path.rpartition("[")
        if call.path.endswith("]") and "[" not in array:
            found.setdefault(array, []).append(call.path)
    return [
        ArrayOfLayers(array, number, number > len(layers))
        for array, layers in found.items()
        if len({*layers}) == len(layers) and (number := sum(map(count, layers))) > 3
    ]
