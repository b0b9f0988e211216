"""Below what the whole numbers of a value must stay: as declared, or by what they point into.

Turns a graph's values and operators into bounds; checking the numbers themselves is the runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.graph.graph import Op, Value

# Operators with whole numbers for indices -> (operand that is the index, operand with the dim it points into).
_POINTED = {"embedding": (0, 1), "gather": (1, 0), "cross_entropy": (1, 0), "nll_loss": (1, 0)}
_KEEP_ELEMENTS = ("rearrange", "relabel", "flatten", "slice", "concat", "cast")


def index_bounds(values: Sequence[Value], ops: Sequence[Op]) -> dict[int, int]:
    """value id -> exclusive upper bound, where one follows."""
    bounds = {v.id: v.bound for v in values if v.bound is not None}
    for op in reversed(ops):
        if op.operator in _KEEP_ELEMENTS and op.results[0] in bounds:
            for operand in op.operands:
                bounds[operand] = min(bounds[op.results[0]], bounds.get(operand, bounds[op.results[0]]))
        elif op.operator in _POINTED:
            index, into = _POINTED[op.operator]
            size = values[op.operands[into]].type.shape[op.attrs.get("dim", 0)]
            bounds[op.operands[index]] = min(size, bounds.get(op.operands[index], size))
        elif op.operator == "one_hot":
            size = values[op.results[0]].type.shape[-1]
            bounds[op.operands[0]] = min(size, bounds.get(op.operands[0], size))
    return bounds
