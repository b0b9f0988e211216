"""One device's values of an operator -> where rounding decides its result: what a comparison, an
argmax, a ranking or a floor may take either way; and where a NaN may stand."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from shardlang.graph.graph import Graph, Op
from shardlang.ops.declaration import REGISTRY

COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
STEPS = frozenset(("floor_divide", "remainder"))
# Below this a value's own size says nothing of the rounding of what it was computed from.
SMALLEST_SCALE = 1e-4


def scale_of(expected: Tensor) -> float:
    """The scale of errors: the greatest finite magnitude of the whole tensor."""
    finite = expected[torch.isfinite(expected)] if expected.is_floating_point() else expected
    return max(float(finite.abs().max()) if finite.numel() else 0.0, SMALLEST_SCALE)


def undecided(op: Op, values: Mapping[int, Tensor], tolerance: float) -> Tensor | None:
    """bool, of the result's shape: where rounding decides. None for an operator that is continuous
    or of whole numbers.

    values: one device's. Equal up to rounding is what differs by `tolerance` of the scale at which
    the operands are held to ranks' at most."""
    operands = [values[v] for v in op.operands]
    if not any(x.is_floating_point() for x in operands):
        return None
    room = tolerance * max(map(scale_of, operands))
    if op.operator in COMPARISONS:
        return (operands[0] - operands[1]).abs() <= room
    if op.operator == "auc":
        ranked = operands[0].flatten().sort().values
        return torch.as_tensor(bool((ranked.diff() <= room).any()))
    if op.operator in STEPS:
        return _near_a_step(operands[0], operands[1], room)
    places = REGISTRY[op.operator].places
    if places is None:
        return None
    dim, many = places(op.attrs), op.attrs.get("k", 1)
    close = ~(operands[0].sort(dim, descending=True).values.diff(dim=dim).abs() > room)  # infinities are alike
    edge = close.narrow(dim, 0, 0).new_zeros([1 if d == dim else n for d, n in enumerate(close.shape)])
    # A place is open where the next or the one before it may as well be there.
    free = (torch.cat((edge, close), dim) | torch.cat((close, edge), dim)).narrow(dim, 0, many)
    return free if "k" in op.attrs else free.squeeze(dim)


def spreading(graph: Graph) -> set[int]:
    """The values that attention is computed from. Its kernels give the NaN of a query's gradient to
    all keys that they have at once, or to those alone that the query sees."""
    found: set[int] = set()
    for op in reversed(graph.ops):
        if op.operator == "attention" or found.intersection(op.results):
            found.update(op.operands)
    return found


def _near_a_step(x: Tensor, y: Tensor, room: float) -> Tensor:
    """Where x / y is a whole number but for rounding, so that its floor may be the number below."""
    ratio = x / y
    return (ratio - ratio.round()).abs() * y.abs() <= room
