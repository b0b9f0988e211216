"""The steps of a trace -> fewer and larger ones: copies and casts of nothing fall away, and
products and parts of matrices have one form. Elements by several constants of their places are a
view, where these count whole dims; a formula counts places below the diagonal of a square."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from shardlang.importing.steps.nodes import CONST, INPUT, PARAM, SIZE, SPLITS, STATE, TURNS, Node, Stored, Traced

_COPIES = ("aten.alias", "aten.contiguous", "aten.clone", "aten.lift_fresh_copy", "aten.to", "aten.double")  # fmt: skip
_VIEWS = ("aten.view", "aten.reshape", "aten.flatten", "aten.expand", "aten.unflatten", "aten._unsafe_view")
# What leaves an image of the size that is wanted as it is.
_RESIZED = ("aten.upsample_bilinear2d", "aten.upsample_bicubic2d", "aten.upsample_nearest2d", "aten.upsample_linear1d",
            "aten.upsample_nearest1d")  # fmt: skip
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


def normalise(traced: Traced) -> None:
    """Changes the steps in place."""
    turned: dict[Node, Node] = {}
    for rule in (_alias, _whole, lambda node: _counting(traced, node), _copy, _truths, _part,
                 lambda node: _product(node, turned)):  # fmt: skip
        traced.rewrite(rule)
    _leading(traced)


def plain(traced: Traced) -> None:
    """The same for steps that compute constants, which come in later."""
    for rule in (_alias, _whole, _copy, _part):
        traced.rewrite(rule)


def _alias(node: Node) -> None:
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


def _whole(node: Node) -> None:
    """Whole numbers that steps make are of 64 bits, as indices are. Inputs and what the module
    keeps may have 32, and so does what is made of these alone."""
    short = [each for each in node.inputs() if each.dtype == torch.int32]
    if node.dtype != torch.int32 or node.op in (INPUT, PARAM, STATE) or short:
        return
    node.dtype = torch.int64
    node.args = tuple(torch.int64 if each is torch.int32 else each for each in node.args)
    node.kwargs = {key: torch.int64 if each is torch.int32 else each for key, each in node.kwargs.items()}
    if node.op == CONST:
        node.value = node.value.long()


def _counting(traced: Traced, node: Node) -> None:
    """A constant that counts along its last dim, from any number in equal steps, is an `arange`."""
    if node.op != CONST or node.value.dtype not in _WHOLE or not node.shape or node.shape[-1] < 2:
        return
    row, wide = node.value.reshape(-1, node.shape[-1])[0].tolist(), node.shape[-1]
    start, step = row[0], row[1] - row[0]
    # Two or three numbers may be anything.
    plain = (start, step) == (0, 1)
    if (plain or (wide > 3 and step > 0)) and bool((node.value == start + step * torch.arange(wide)).all()):
        traced.compared.append(dataclasses.replace(node))
        node.op, node.shape = "aten.arange", (wide,)
        node.args = () if plain else (start, start + step * wide, step)


def _copy(node: Node) -> Node | None:
    """The value that a step copies, or casts to what it is already."""
    alone = node.op == "aten.cat" and len(node.args[0]) == 1
    first = node.args[0][0] if alone else node.args[0] if node.args else None
    if not isinstance(first, Node):
        return None
    same = node.op in _COPIES and ((node.floating and first.floating) or node.dtype == first.dtype)
    still = node.op == "aten.dropout" and (not node.args[1] or not node.args[2])
    view = node.op in (*_VIEWS, *_RESIZED) and node.shape == first.shape
    return first if alone or same or still or view else None


def _truths(node: Node) -> None:
    """The first true place is found without a cast of truths to numbers."""
    truths = node.args[0].args[0] if node.op == "aten.argmax" and node.args[0].op == "aten.to" else None
    if isinstance(truths, Node) and truths.dtype == torch.bool:
        node.args = (truths, *node.args[1:])


def _part(node: Node) -> Node | None:
    """`split`, `chunk` and `unbind` are slices of what they cut."""
    source = node.args[0] if node.op == "item" else None
    if not isinstance(source, Node) or source.op not in SPLITS:
        return None
    (whole, *rest), number = source.args, node.args[1]
    if source.op == "aten.unbind":
        dim = rest[0] if rest else source.kwargs.get("dim", 0)
        return node.like("aten.select", whole, dim, number, name=node.name)
    dim, sizes = source.kwargs.get("dim", rest[1] if len(rest) > 1 else 0) % len(whole.shape), rest[0]
    if isinstance(sizes, list | tuple):
        start = sum(map(int, sizes[:number]))
    else:
        start = number * int(sizes if source.op == "aten.split" else -(-whole.shape[dim] // sizes))
    return node.like("aten.slice", whole, dim, start, start + node.shape[dim], name=node.name)


def _product(node: Node, turned: dict[Node, Node]) -> Node | None:
    """A product with a matrix of the module is `linear`, whichever way it is kept. turned: matrices
    by their columns."""
    bias, x, weight = None, None, None
    if node.op == "aten.addmm" and not node.kwargs:
        bias, x, weight = node.args
    elif node.op in ("aten.mm", "aten.matmul"):
        x, weight = node.args
    if not isinstance(weight, Node) or len(weight.shape) != 2 or (bias is not None and len(bias.shape) != 1):
        return None
    if weight.op in TURNS and weight.args[0].op == PARAM:
        return node.like("aten.linear", x, weight.args[0], bias)
    if weight.op != PARAM or node.op != "aten.addmm":
        return None
    assert weight.stored is not None
    columns = dataclasses.replace(weight, shape=weight.shape[::-1], stored=Stored(weight.stored.name, True), order=-1)
    return node.like("aten.linear", x, turned.setdefault(weight, columns), bias)


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
    traced.sweep()


def _leading_dims(view: Node) -> int | None:
    """How many dims of a tensor a view joins into its rows; the others are the last of the view."""
    before = view.args[0].shape
    if before[-1] == view.shape[-1]:
        return len(before) - 1
    found = [at for at in range(1, len(before)) if math.prod(before[at:]) == view.shape[-1]]
    return found[0] if len(found) == 1 and len(view.shape) == 2 else None


def indices(traced: Traced) -> None:
    """Changes the steps in place."""

    def rule(node: Node) -> Node | None:
        if node.op != "aten.index":
            return None
        if _below(node):
            return _taken(node)
        if not _counts_dims(node):
            return None
        traced.compared += [each for each in node.args[1] if each.op == CONST]
        return node.like("aten.view", node.args[0], list(node.shape))

    traced.rewrite(rule)


def _counts_dims(node: Node) -> bool:
    """Whether each index counts all places of a dim, along a dim of its own, in the order of the
    dims: so the result has all elements of x in their order. Masks are written so."""
    x, given = node.args
    if not all(isinstance(each, Node) for each in given):
        return False
    along = [_along(each, size) for each, size in zip(given, x.shape, strict=False)]
    if any(each is None for each in along):
        return False
    places = [each for each in along if each]
    return places == sorted(set(places)) and math.prod(node.shape) == math.prod(x.shape)


def _along(index: Node, size: int) -> int | None:
    """The dim, from the right, along which an index counts from 0 to size - 1; 0 for a single 0,
    None where it does not count so."""
    if index.op == "aten.arange" and not index.args:
        return -1 if index.shape == (size,) else None
    if index.op != CONST or index.value.numel() != size or index.value.dtype == torch.bool:
        return None
    if index.value.flatten().tolist() != list(range(size)):
        return None
    shape = index.value.shape
    return next((at - len(shape) for at in range(len(shape)) if shape[at] == size), 0) if size > 1 else 0


def _below(node: Node) -> bool:
    """Whether the last two dims are a square of n, and the indices torch.tril_indices(n, n, -1)."""
    x, indices = node.args
    if len(indices) != len(x.shape) or len(indices) < 2:
        return False
    wide, rest, last = x.shape[-1], indices[:-2], indices[-2:]
    if wide < 3 or x.shape[-2] != wide or any(each is not None for each in rest):
        return False
    if not all(isinstance(each, Node) and each.op == CONST for each in last):
        return False
    return bool(torch.equal(torch.stack([each.value for each in last]), torch.tril_indices(wide, wide, -1)))


def _taken(node: Node) -> Node:
    """Pair p, from 0, is in row r = floor(1/2 + sqrt(2 p + 1/4)) and column p - r (r - 1) / 2."""
    x, count, wide = node.args[0], node.shape[-1], node.args[0].shape[-1]

    def step(op: str, *args: Any, dtype: torch.dtype = torch.int64, **more: Any) -> Node:
        return node.like(f"aten.{op}", *args, shape=(count,), dtype=dtype, code="", **more)

    side = node.like(SIZE, x, len(x.shape) - 2, shape=(), dtype=torch.int64, code="")
    pair = step("arange", count, kwargs={"name": "pairs", "pairs_of": side})
    pair.code = "pair ="
    twice = step("add", step("mul", step("to", pair, dtype=torch.float32), 2.0, dtype=torch.float32), 0.25,
                 dtype=torch.float32)  # fmt: skip
    root = step("add", step("sqrt", twice, dtype=torch.float32), 0.5, dtype=torch.float32)
    row = step("to", root)
    row.code = "row ="
    before = step("div", step("mul", row, step("sub", row, 1)), 2, kwargs={"rounding_mode": "floor"})
    column = step("sub", pair, before)
    column.code = "column ="
    many = node.like(SIZE, x, len(x.shape) - 1, shape=(), dtype=torch.int64, code="")
    place = step("add", step("mul", row, many), column)
    flat = node.like("aten.view", x, [*x.shape[:-2], wide * wide], shape=(*x.shape[:-2], wide * wide))
    return node.like("aten.index", flat, [None] * (len(x.shape) - 2) + [place])
