"""Elements by several constants of their places -> a view, where these count whole dims; places
that a formula counts, where they are below the diagonal of a square."""

from __future__ import annotations

import math
from typing import Any

import torch

from shardlang.importing.steps.nodes import CONST, SIZE, Node, Traced


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
