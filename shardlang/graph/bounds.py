"""Which whole numbers a value may hold: as declared, or by what they point into, and what of them is ignored there.

Turns a graph's values and operators into ranges; checking the numbers themselves is the runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.graph.graph import Op, Value
from shardlang.records import dataclass

# Operators with whole numbers for indices -> (operand that is the index, operand with the dim it points into).
_POINTED = {"embedding": (0, 1), "gather": (1, 0), "cross_entropy": (1, 0), "nll_loss": (1, 0)}
_KEEP_ELEMENTS = ("rearrange", "relabel", "flatten", "slice", "concat", "cast")


@dataclass(frozen=True)
class Indices:
    """Numbers from 0 and below `bound`, and those that every use leaves out. ignored: None where nothing uses them as
    indices.
    """

    bound: int
    ignored: frozenset[int] | None = None

    def met(self, other: Indices | None) -> Indices:
        """What both allow."""
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
        if op.operator in _KEEP_ELEMENTS and op.results[0] in found:
            for operand in op.operands:
                found[operand] = found[op.results[0]].met(found.get(operand))
        elif op.operator in _POINTED:
            index, into = _POINTED[op.operator]
            size = values[op.operands[into]].type.shape[op.attrs.get("dim", 0)]
            ignored = op.attrs.get("ignore_index")
            used = Indices(size, frozenset(() if ignored is None else (ignored,)))
            found[op.operands[index]] = used.met(found.get(op.operands[index]))
        elif op.operator == "one_hot":
            used = Indices(values[op.results[0]].type.shape[-1], frozenset())
            found[op.operands[0]] = used.met(found.get(op.operands[0]))
    return found
