"""An expression of the emitted text -> whether autograd keeps something of it for backward.

Backward computes a function again up to the last line that keeps something, so collectives behind
that run once. Sums of tensors, views, casts and conversions keep nothing."""

from __future__ import annotations

import ast

from shardlang.matched.read_back.text import is_runtime
from shardlang.plan.plan import MoveKind

_LINEAR = frozenset({
    "contiguous", "detach", "double", "expand", "flatten", "float", "movedim", "permute", "repeat", "reshape",
    "squeeze", "sum", "to", "transpose", "unsqueeze", "view",
})  # fmt: skip
_CONVERSIONS = frozenset(kind.value for kind in MoveKind)


def keeps(node: ast.expr) -> bool:
    """Whether something of it is kept; a call of a function of the program counts by itself."""
    match node:
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Constant():
            return False
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return keeps(left) or keeps(right)
        case ast.Call(func=ast.Name()):
            return False
        case ast.Call(func=function, args=[first, *_]) if is_runtime(function) in _CONVERSIONS:
            return keeps(first)
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _LINEAR:
            return keeps(value)
    return True
