"""Which whole numbers a value may hold: as declared, or by what they point into, and what of them
is ignored there. Which indices nothing bounds before the run.

Turns a graph's values and operators into ranges; checking the numbers themselves is the runtime's.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import Graph, GraphValue, Kind, Op
from shardlang.ops.declaration import REGISTRY, Indexing
from shardlang.types.dim import term_text


@dataclass(frozen=True)
class Indices:
    """Numbers from 0 and below `bound`, and those that every use leaves out. ignored: None where
    nothing uses them as indices."""

    bound: int
    ignored: frozenset[int] | None = None

    def met(self, other: Indices | None) -> Indices:
        """The bound that both allow."""
        if other is None:
            return self
        sets = [each.ignored for each in (self, other) if each.ignored is not None]
        return Indices(min(self.bound, other.bound), frozenset.intersection(*sets) if sets else None)

    @property
    def further(self) -> tuple[int, ...]:
        """The numbers that are allowed though they are no indices, ascending."""
        return tuple(sorted(number for number in self.ignored or () if not 0 <= number < self.bound))


def index_bounds(values: Sequence[GraphValue], ops: Sequence[Op]) -> dict[int, Indices]:
    """value id -> what it may hold, where something says so."""
    found = {v.id: Indices(v.bound) for v in values if v.bound is not None}
    for op in reversed(ops):
        operator = REGISTRY[op.operator]
        if operator.moves and op.results[0] in found:
            for operand in op.operands:
                found[operand] = found[op.results[0]].met(found.get(operand))
        elif operator.indexes is not None:
            numbers, into, dim = pointed(op, operator.indexes)
            ignored = op.attrs.get("ignore_index")
            used = Indices(values[into].type.shape[dim], frozenset(() if ignored is None else (ignored,)))
            found[numbers] = used.met(found.get(numbers))
    return found


def pointed(op: Op, indexes: Indexing) -> tuple[int, int, int]:
    """The value that has the indices, the value that they index, and along which of its dims."""
    dim = op.attrs["dim"] if indexes.dim is None else indexes.dim
    return op.operands[indexes.numbers], (*op.operands, *op.results)[indexes.into], dim


@dataclass(frozen=True)
class Computed:
    """Indices of an operator that the program computes, so that each step looks at them. at: the
    operand that has them. size, dim: of what they point into. what: their expression, or their
    name. ignored: the number that the operator leaves out. file, line: the place of the operator.
    """

    at: int
    size: int
    dim: str
    what: str
    ignored: int | None
    file: str
    line: int


@remembered
def computed_indices(graph: Graph) -> Mapping[int, Computed]:
    """operator id -> its indices, where the loader of the data does not see them and they are no
    places that another operator found."""
    found: dict[int, Computed] = {}
    tops = {v.id: v.bound for v in graph.values if v.kind is Kind.DATA and v.bound is not None}
    for op in graph.ops:
        operator = REGISTRY[op.operator]
        if (top := _top(graph, op, tops)) is not None:
            tops.update(dict.fromkeys(op.results, top))
        if operator.indexes is None:
            continue
        numbers, into, dim = pointed(op, operator.indexes)
        type, value = graph.values[into].type, graph.values[numbers]
        if tops.get(numbers, type.shape[dim] + 1) <= type.shape[dim]:
            continue
        what = value.name if ":" not in value.path else " ".join(value.span.text.split())
        source, ignored = op.span.source, op.attrs.get("ignore_index")
        file = source.name if source.library else posixpath.basename(source.name)
        found[op.id] = Computed(
            operator.indexes.numbers, type.shape[dim], term_text(type.dims[dim]), what, ignored, file, op.span.line
        )
    return found


def _top(graph: Graph, op: Op, tops: Mapping[int, int]) -> int | None:
    """All numbers of an operator's result are from 0 to below this; None: that is open."""
    operator = REGISTRY[op.operator]
    if operator.moves:
        return max(tops[v] for v in op.operands) if all(v in tops for v in op.operands) else None
    if operator.places is None:
        return None
    return graph.values[(*op.operands, *op.results)[0]].type.shape[operator.places(op.attrs)]
