"""Which whole numbers a value may hold: as declared, or by what they point into, and what of them
is ignored there.

Turns a graph's values and operators into ranges; checking the numbers themselves is the runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.graph.graph import Op, Value
from shardlang.ops.declaration import REGISTRY, Indexing
from shardlang.records import dataclass


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


def index_bounds(values: Sequence[Value], ops: Sequence[Op]) -> dict[int, Indices]:
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
