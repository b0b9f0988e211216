"""A step that writes into a tensor, or into a part of it -> the whole tensor as it is from then on,
put together of its parts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from shardlang.importing.steps.nodes import CONST, SPLITS, Node

# Views of a part of a tensor, and those of all of it.
_PARTS = ("aten.slice", "aten.select", "aten.narrow", *SPLITS)
_RESHAPES = ("aten.view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.flatten", "aten.unflatten")
_TURNS = ("aten.transpose", "aten.permute", "aten.t")
VIEWS = (*_PARTS, *_RESHAPES, *_TURNS, "aten.expand")


def name_of(target: Any) -> str:
    """`aten.add.Tensor` without its overload."""
    return str(getattr(target, "overloadpacket", target))


def chain(target: Any) -> list[Any]:
    """A node of torch's graph and those that it is a view of, up to the tensor that owns the
    numbers."""
    found = [target]
    while (parent := _parent(found[-1])) is not None:
        found.append(parent)
    return found


def _parent(node: Any) -> Any:
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        return source.args[0] if name_of(getattr(source, "target", "")) in SPLITS else None
    return node.args[0] if name_of(node.target) in VIEWS else None


def views_read_later(root: Any, writer: Any) -> list[Any]:
    """The views of a tensor that were made before a step writes into it, and that are read behind
    it."""
    order = {each: at for at, each in enumerate(writer.graph.nodes)}
    before = [each for each in writer.graph.nodes if order[each] < order[writer]]
    made = [each for each in before if each.op == "call_function" and _parent(each) is not None]
    return [each for each in made if any(order.get(user, -1) > order[writer] for user in each.users)
            and chain(each)[-1] is root]  # fmt: skip


def put(view: Any, step: Node, whole: Node, part: Node) -> Node | None:
    """`whole`, of which the part that `view` shows is now `part`; None where that is no part in one
    piece. step: the step that writes. (torch lets none write into a part that `split` gives.)"""
    name, args = name_of(view.target), view.args
    rank = len(whole.shape)
    if name in _RESHAPES:
        return step.like("aten.view", part, list(whole.shape), shape=whole.shape)
    if name in _TURNS:
        order = order_of(name, args, rank)
        back = [order.index(at) for at in range(rank)]
        return step.like("aten.permute", part, back, shape=whole.shape)
    dim = (args[1] if len(args) > 1 else 0) % max(rank, 1)
    if name == "aten.select":
        return _row(step, whole, part, dim, args[2] % whole.shape[dim])
    if name != "aten.slice":
        return None
    first, last, stride = slice(*[*args[2:], None, None, None][:3]).indices(whole.shape[dim])
    return _between(step, whole, part, dim, first, last) if stride == 1 else None


def order_of(name: str, args: Sequence[Any], rank: int) -> list[int]:
    """Which dim of a tensor each dim of the turned one is."""
    if name == "aten.permute":
        return [at % rank for at in args[1]]
    order = list(range(rank))
    one, other = args[1:3] if name == "aten.transpose" else (0, 1)
    order[one], order[other] = order[other], order[one]
    return order


def _row(step: Node, whole: Node, part: Node, dim: int, at: int) -> Node:
    shape = (*part.shape[:dim], 1, *part.shape[dim:])
    return _between(step, whole, step.like("aten.unsqueeze", part, dim, shape=shape), dim, at, at + 1)


def _between(step: Node, whole: Node, part: Node, dim: int, first: int, last: int) -> Node:
    """The whole with a part from one place of a dim to another."""
    parts = [*_cut(step, whole, dim, 0, first), part, *_cut(step, whole, dim, last, whole.shape[dim])]
    parts = [each for each in parts if each.shape[dim]]
    return parts[0] if len(parts) == 1 else step.like("aten.cat", parts, dim, shape=whole.shape)


def _cut(step: Node, whole: Node, dim: int, first: int, last: int) -> list[Node]:
    """The part between two places, or several of what is put side by side."""
    if first >= last:
        return []
    if whole.op == "aten.cat" and whole.args[1] % len(whole.shape) == dim:
        found, start = [], 0
        for each in whole.args[0]:
            low, high = max(first - start, 0), min(last - start, each.shape[dim])
            found += _cut(step, each, dim, low, high)
            start += each.shape[dim]
        return found
    if (first, last) == (0, whole.shape[dim]):
        return [whole]
    shape = tuple(last - first if at == dim else each for at, each in enumerate(whole.shape))
    made = step.like("aten.slice", whole, dim, first, last, shape=shape, dtype=whole.dtype)
    if whole.op != CONST:
        return [made]
    return [made.like(CONST, value=whole.value.narrow(dim, first, last - first), made=made)]


def value_of(step: Node) -> Node:
    """The value that a step in place writes: `copy_` another tensor, `fill_` a number."""
    op, shape = step.op, step.shape
    if op in ("aten.zero", "aten.fill"):
        number = step.args[1] if op == "aten.fill" else 0
        if not isinstance(number, Node):
            return step.like(CONST, value=torch.full(shape, number, dtype=step.dtype))
        return step.like("aten.expand", number, list(shape))
    if op != "aten.copy":
        return step
    value: Node = step.args[1]
    if value.shape != shape:
        value = step.like("aten.expand", value, list(shape), dtype=value.dtype)
    return value if value.dtype == step.dtype else step.like("aten.to", value, step.dtype)
