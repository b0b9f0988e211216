"""One device's values of an operator -> where rounding decides its result: what a comparison, an
argmax or a ranking may take either way."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shardlang.graph.graph import Op

COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def undecided(op: Op, values: Mapping[int, Tensor], tolerance: float) -> Tensor | None:
    """bool, of the result's shape: where rounding decides. None for an operator that is continuous
    or of whole numbers.

    values: one device's. Equal up to rounding is what differs by `tolerance` of the greatest
    magnitude at most."""
    operands = [values[v] for v in op.operands]
    if not any(x.is_floating_point() for x in operands):
        return None
    room = tolerance * max(float(x.abs().max()) if x.numel() else 0.0 for x in operands)
    if op.operator in COMPARISONS:
        return (operands[0] - operands[1]).abs() <= room
    if op.operator == "auc":
        ranked = operands[0].flatten().sort().values
        return torch.as_tensor(bool((ranked.diff() <= room).any()))
    if op.operator != "argmax":
        return None
    (dim,), (x,) = op.attrs["dims"], operands
    if x.shape[dim] < 2:
        return None
    best, second = x.topk(2, dim).values.unbind(dim)
    return torch.as_tensor(best - second <= room)
