"""The steps of a trace -> fewer and larger ones: copies and casts of nothing fall away, and
products and parts of matrices have one form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from shardlang.importing.steps.nodes import CONST, INPUT, PARAM, STATE, Node, Stored, Traced

_COPIES = ("aten.alias", "aten.contiguous", "aten.clone", "aten.lift_fresh_copy", "aten.to", "aten.double")  # fmt: skip
_VIEWS = ("aten.view", "aten.reshape", "aten.flatten", "aten.expand", "aten.unflatten", "aten._unsafe_view")
# What leaves an image of the size that is wanted as it is.
_RESIZED = ("aten.upsample_bilinear2d", "aten.upsample_bicubic2d", "aten.upsample_nearest2d", "aten.upsample_linear1d",
            "aten.upsample_nearest1d")  # fmt: skip
_TURNS = ("aten.t", "aten.transpose", "aten.permute", "aten.numpy_T", "aten.swapaxes")
# Other names of the same step.
_ALIASES = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "view_as": "view",
    "reshape_as": "view", "expand_as": "expand", "type_as": "to", "_to_copy": "to", "float": "to",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or", "bitwise_not": "logical_not", "__and__": "logical_and", "__or__": "logical_or",
    "greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le", "not_equal": "ne", "concat": "cat",
    "concatenate": "cat", "special_erf": "erf", "clamp_min": "clamp",
    "absolute": "abs", "negative": "neg", "special_expm1": "expm1", "clip": "clamp",
}  # fmt: skip
_WHOLE = (torch.int64, torch.int32)
_SPLITS = ("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unbind")


def normalise(traced: Traced) -> None:
    """Changes the steps in place."""
    for change in (_aliases, _whole, _indices, _copies, _truths, _parts, _matrices, _leading):
        change(traced)
        traced.sweep()


def plain(traced: Traced) -> None:
    """The same for steps that compute constants, which come in later."""
    for change in (_aliases, _whole, _copies, _parts):
        change(traced)
        traced.sweep()


def _aliases(traced: Traced) -> None:
    for node in traced.nodes:
        name = node.op.removeprefix("aten.")
        truth = name in ("bitwise_and", "bitwise_or", "bitwise_not", "__and__", "__or__")
        if name in ("cat", "concat", "concatenate"):
            parts = [each for each in node.args[0] if 0 not in each.shape] or list(node.args[0])
            node.args = (parts, *node.args[1:])
        if name == "floor_divide":
            node.op, node.kwargs = "aten.div", {"rounding_mode": "floor"}
        elif name == "narrow":
            x, dim, start, length = node.args
            node.op, node.args = "aten.slice", (x, dim, start, start + length)
        elif name in _ALIASES and (not truth or node.dtype == torch.bool):
            node.op = f"aten.{_ALIASES[name]}"


def _whole(traced: Traced) -> None:
    """Whole numbers that steps make are of 64 bits, as indices are. Inputs and what the module
    keeps may have 32, and so does what is made of these alone."""
    for node in traced.nodes:
        short = [each for each in node.inputs() if each.dtype == torch.int32]
        if node.dtype != torch.int32 or node.op in (INPUT, PARAM, STATE) or short:
            continue
        node.dtype = torch.int64
        node.args = tuple(torch.int64 if each is torch.int32 else each for each in node.args)
        node.kwargs = {key: torch.int64 if each is torch.int32 else each for key, each in node.kwargs.items()}
        if node.op == CONST:
            node.value = node.value.long()


def _truths(traced: Traced) -> None:
    """The first true place is found without a cast of truths to numbers."""
    for node in traced.nodes:
        truths = node.args[0].args[0] if node.op == "aten.argmax" and node.args[0].op == "aten.to" else None
        if isinstance(truths, Node) and truths.dtype == torch.bool:
            node.args = (truths, *node.args[1:])


def _indices(traced: Traced) -> None:
    """A constant that counts along its last dim, from any number in equal steps, is an `arange`."""
    for node in traced.nodes:
        if node.op != CONST or node.value.dtype not in _WHOLE or not node.shape or node.shape[-1] < 2:
            continue
        row, wide = node.value.reshape(-1, node.shape[-1])[0].tolist(), node.shape[-1]
        start, step = row[0], row[1] - row[0]
        # Two or three numbers may be anything.
        plain = (start, step) == (0, 1)
        if (plain or (wide > 3 and step > 0)) and bool((node.value == start + step * torch.arange(wide)).all()):
            traced.compared.append(dataclasses.replace(node))
            node.op, node.shape = "aten.arange", (wide,)
            node.args = () if plain else (start, start + step * wide, step)


def _copies(traced: Traced) -> None:
    changes = {}
    for node in traced.nodes:
        first = node.args[0] if node.args else None
        alone = node.op == "aten.cat" and len(node.args[0]) == 1
        first = node.args[0][0] if alone else first
        if not isinstance(first, Node):
            continue
        floats = node.floating and first.floating
        same = node.op in _COPIES and (floats or node.dtype == first.dtype)
        still = node.op == "aten.dropout" and (not node.args[1] or not node.args[2])
        if alone or same or still or (node.op in (*_VIEWS, *_RESIZED) and node.shape == first.shape):
            changes[node] = first
    traced.replace(changes)


def _parts(traced: Traced) -> None:
    """`split`, `chunk` and `unbind` are slices of what they cut."""
    changes = {}
    for node in traced.nodes:
        source = node.args[0] if node.op == "item" else None
        if not isinstance(source, Node) or source.op not in _SPLITS:
            continue
        whole, *rest = source.args
        number = node.args[1]
        dim = source.kwargs.get("dim", rest[1] if len(rest) > 1 else 0)
        if source.op == "aten.unbind":
            dim = rest[0] if rest else source.kwargs.get("dim", 0)
            changes[node] = node.like("aten.select", whole, dim, number, name=node.name)
            continue
        dim %= len(whole.shape)
        start = _start(source.op, rest[0], number, whole.shape[dim])
        changes[node] = node.like("aten.slice", whole, dim, start, start + node.shape[dim], name=node.name)
    traced.replace(changes)


def _start(op: str, sizes: Any, number: int, wide: int) -> int:
    """Where the part of a number begins."""
    if isinstance(sizes, list | tuple):
        return sum(map(int, sizes[:number]))
    return number * int(sizes if op == "aten.split" else -(-wide // sizes))


def _matrices(traced: Traced) -> None:
    """A product with a matrix of the module is `linear`, whichever way it is kept."""
    changes: dict[Node, Node] = {}
    turned: dict[Node, Node] = {}
    for node in traced.nodes:
        op, args = node.op.removeprefix("aten."), node.args
        bias, x, weight = None, None, None
        if op == "addmm" and not node.kwargs:
            bias, x, weight = args
        elif op in ("mm", "matmul"):
            x, weight = args
        if not isinstance(weight, Node) or len(weight.shape) != 2 or (bias is not None and len(bias.shape) != 1):
            continue
        if weight.op in _TURNS and weight.args[0].op == PARAM:
            changes[node] = node.like("aten.linear", x, weight.args[0], bias)
        elif weight.op == PARAM and op == "addmm":
            changes[node] = node.like("aten.linear", x, turned.setdefault(weight, _turned(weight)), bias)
    traced.replace(changes)


def _turned(weight: Node) -> Node:
    """The same matrix, by its columns."""
    assert weight.stored is not None
    stored = Stored(weight.stored.name, True)
    shape = weight.shape[::-1]
    return Node(PARAM, shape=shape, dtype=weight.dtype, name=weight.name, stored=stored, value=weight.value)


def _leading(traced: Traced) -> None:
    """Leading dims that are joined for a product, and come back behind it, stay as they are."""
    readers = traced.readers()
    changes: dict[Node, Node] = {}
    for node in traced.nodes:
        if node.op != "aten.linear":
            continue
        view = node.args[0]
        leading = _leading_dims(view) if view.op in _VIEWS else None
        if leading is None:
            continue
        x = view.args[0]
        wanted = (*x.shape[:leading], node.shape[-1])
        if readers[node] and all(each.op in _VIEWS and each.shape == wanted for each in readers[node]):
            if leading < len(x.shape) - 1:
                x = view.like("aten.view", x, shape := [*x.shape[:leading], view.shape[-1]], shape=tuple(shape))
            new = node.like("aten.linear", x, *node.args[1:], shape=wanted)
            changes.update({each: new for each in readers[node]})
    traced.replace(changes)


def _leading_dims(view: Node) -> int | None:
    """How many dims of a tensor a view joins into its rows; the others are the last of the view."""
    before = view.args[0].shape
    if before[-1] == view.shape[-1]:
        return len(before) - 1
    found = [at for at in range(1, len(before)) if math.prod(before[at:]) == view.shape[-1]]
    return found[0] if len(found) == 1 and len(view.shape) == 2 else None
