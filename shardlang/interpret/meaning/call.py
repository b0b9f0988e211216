"""One operator as its meaning is computed: what a function of the table gets besides operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.errors import outside
from shardlang.facts.dtypes import DTYPES
from shardlang.graph.bounds import Computed, computed_indices
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.interpret.meaning.draws import key_of
from shardlang.ops.rule import DimFactors, FactorRule

# The element types of the language: a graph is computed in those that its values have (see
# elements.py).
ELEMENTS: dict[str, torch.dtype] = {name: getattr(torch, facts.torch) for name, facts in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class PassSettings:
    """The state that all operators of a pass share: training or `eval`, and random keys' parts."""

    training: bool = True
    step: int = 1
    seed: int = 0


@dataclass(frozen=True)
class OperatorCall:
    """attrs, rule: the operator's. sizes, starts: per factor the size and the global index of the
    first element of what is computed here: the whole on one device, a rank's part on one of many.
    dtypes: of the results. constants: per operand the static number it is, or None. key: of its
    random numbers. indices: those of an operand that the program computes."""

    operator: str
    attrs: Mapping[str, Any]
    rule: FactorRule
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    constants: tuple[float | int | None, ...]
    key: int
    run: PassSettings
    indices: Computed | None = None

    def whole(self, dims: tuple[DimFactors, ...]) -> tuple[int, ...]:
        """The sizes that tensor dims made of these factors have in the whole."""
        return tuple(math.prod(self.rule.factors[f].size for f in factors) for factors in dims)

    def local(self, dims: tuple[DimFactors, ...]) -> tuple[int, ...]:
        """The sizes that tensor dims made of these factors have here."""
        return tuple(math.prod(self.sizes[f] for f in factors) for factors in dims)

    def start(self, factors: DimFactors) -> int:
        """The global index of the first local element of a tensor dim of `factors`, major first."""
        index, inner = 0, 1
        for f in reversed(factors):
            index += self.starts[f] * inner
            inner *= self.rule.factors[f].size
        return index


def call_of(graph: Graph, op: Op, run: PassSettings) -> OperatorCall:
    """The call of `op` on one device."""
    values = [graph.values[v] for v in op.operands]
    return OperatorCall(
        operator=op.operator,
        attrs=op.attrs,
        rule=op.rule,
        sizes=tuple(f.size for f in op.rule.factors),
        starts=(0,) * len(op.rule.factors),
        dtypes=tuple(ELEMENTS[graph.values[v].type.dtype] for v in op.results),
        constants=tuple(v.constant if v.kind is Kind.CONSTANT else None for v in values),
        key=key_of(run.seed, op.path, op.call, run.step),
        run=run,
        indices=computed_indices(graph).get(op.id),
    )


def settled(result: Tensor, operands: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """The result in its declared type, and never an operand itself: each has its own gradient."""
    result = result if result.dtype == dtype else result.to(dtype)
    return result.view_as(result) if any(result is x for x in operands) else result


def computed(table: Mapping[str, Any], call: OperatorCall, operands: tuple[Tensor, ...]) -> Tensor:
    """The results of the operator by the function in `table`."""
    function = table.get(call.operator)
    if function is None:
        raise InternalError(f"the interpreter does not know the operator {call.operator}")
    if call.indices is not None:
        _require_within(call.indices, operands[call.indices.at])
    return settled(function(call, *operands), operands, call.dtypes[0])


def _require_within(found: Computed, indices: Tensor) -> None:
    """RunError SH519 where an index is no place of the whole dim, nor ignored."""
    places = set(range(found.size)) | {found.ignored}
    for index in indices.flatten().tolist():
        if index not in places:
            raise outside(index, found.size, found.what, found.dim, found.file, found.line, found.ignored)
