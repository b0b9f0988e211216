"""Mixed precision: casts of operands, so that each operator computes in what its declaration says.

Layers hand on what torch.autocast would, or the low precision too (`stream`). Then an operator that
reads a low value or a parameter reads everything in that, but for single numbers. Values of data
alone stay as they are given until then.

A parameter is kept in f32. Where its first use is in the low precision, the program works with a
copy of it in that (`Value.type` is then the copy's); its gradient and its optimizer stay in f32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.values import Tensor
from shardlang.graph.graph import Kind
from shardlang.ops.declaration import Precision
from shardlang.types.dim import TensorType

Operands = tuple[Tensor | None, ...]
Add = Callable[[Tensor, str], Tensor]


def in_precision(
    precision: Precision, operands: Operands, static: Mapping[str, Any], frame: Frame, add: Add
) -> Operands:
    """The operands in the types in which an operator of this precision computes; `add` casts."""
    low = frame.context.low
    if not low or precision is Precision.WRITTEN:
        return operands
    operands = tuple(None if o is None else _as_kept(o, frame) for o in operands)
    if precision is Precision.WIDENS:
        return _beside(operands, False, lambda o: False, frame, add)
    if precision is Precision.LOW:
        return tuple(_cast(o, low, frame, add) for o in operands)
    if frame.context.stream and precision is Precision.FIRST:
        return operands[0], *(_cast(o, "f32", frame, add) for o in operands[1:])
    if frame.context.stream and precision is not Precision.F32 and not _is_number(precision, operands, static):
        sized = [o for o in operands if o is not None and o.type.dims]
        narrow = any(o.type.dtype == low or _is_parameter(o, frame) for o in sized)
        return _beside(operands, narrow, lambda o: bool(o.type.dims), frame, add)
    mixed = len({o.type.dtype for o in operands if o is not None}) > 1
    if precision in _WIDE or (precision is Precision.ALIKE and mixed):
        return tuple(_cast(o, "f32", frame, add) for o in operands)
    mixed = any(o is not None and o.type.dtype == low and bool(o.type.dims) for o in operands)
    return _beside(operands, mixed and precision is Precision.BESIDE, lambda o: _is_parameter(o, frame), frame, add)


_WIDE = (Precision.F32, Precision.INSIDE, Precision.SUM, Precision.FIRST)


def _is_number(precision: Precision, operands: Operands, static: Mapping[str, Any]) -> bool:
    """Whether an operator is a sum that leaves no dims."""
    over, summed = static.get("over"), operands[0]
    return precision is Precision.SUM and (over is None or summed is None or len(over) == len(summed.type.dims))


def _beside(operands: Operands, low: bool, which: Callable[[Tensor], bool], frame: Frame, add: Add) -> Operands:
    """The operands as they are, or with those of them, say parameters, in the low precision."""
    if low:
        return tuple(_cast(o, frame.context.low, frame, add) if o is not None and which(o) else o for o in operands)
    for operand in operands:
        if operand is not None and _is_parameter(operand, frame):
            frame.context.wide.add(operand.id)
    return operands


def _is_parameter(tensor: Tensor, frame: Frame) -> bool:
    return frame.context.build.values[tensor.id].kind is Kind.PARAM


def _as_kept(tensor: Tensor, frame: Frame) -> Tensor:
    """A parameter in the type that its first use gave it."""
    kept = frame.context.build.values[tensor.id].type.dtype
    return tensor if tensor.type.dtype == kept else _typed(tensor, kept)


def _typed(tensor: Tensor, dtype: str) -> Tensor:
    return Tensor(tensor.id, TensorType(dtype, tensor.type.dims), tensor.name)


def _cast(tensor: Tensor | None, dtype: str, frame: Frame, add: Add) -> Tensor | None:
    """A value of f32 or the low precision in `dtype`; others as they are."""
    context = frame.context
    if tensor is None or tensor.type.dtype not in ("f32", context.low):
        return tensor
    draft = context.build.values[tensor.id]
    if draft.kind is Kind.CONSTANT:
        return tensor
    if draft.kind is Kind.PARAM and dtype == context.low and tensor.id not in context.wide:
        draft.type = TensorType(dtype, draft.type.dims)
    elif draft.kind is Kind.PARAM and dtype == tensor.type.dtype:
        context.wide.add(tensor.id)
    if draft.type.dtype == dtype:
        return _typed(tensor, dtype)
    key = (tensor.id, dtype)
    if key not in context.casts:
        context.casts[key] = add(tensor, dtype)
    # The dims are those that the value has here: a model knows them by its own names.
    made: Tensor = context.casts[key]
    return Tensor(made.id, TensorType(dtype, tensor.type.dims), tensor.name)
