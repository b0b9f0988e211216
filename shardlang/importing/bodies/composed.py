"""Functions of each element that the language says in several operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.importing.bodies.body import Const, Expr, Value
from shardlang.importing.bodies.maker import Maker
from shardlang.importing.bodies.selections import part
from shardlang.importing.bodies.words import reduction, sign, where, word
from shardlang.importing.steps.nodes import Node
from shardlang.importing.steps.problems import Refused

# Functions of x, as operators of operators.
_GATE = ("/", ("minimum", ("maximum", ("+", "x", 3.0), 0.0), 6.0), 6.0)
_FUNCTIONS = {
    "floor": ("//", "x", 1.0),
    "expm1": ("-", ("exp", "x"), 1.0),
    "log1p": ("log", ("+", "x", 1.0)),
    "reciprocal": ("/", 1.0, "x"),
    "relu6": ("minimum", ("maximum", "x", 0.0), 6.0),
    "hardsigmoid": _GATE,
    "hardswish": ("*", "x", _GATE),
    "mish": ("*", "x", ("tanh", ("softplus", "x"))),
    "log_sigmoid": ("neg", ("softplus", ("neg", "x"))),
}
# What their numbers are, where layers differ in them.
_ROLES = {"maximum": "low", "minimum": "high"}


@word(*_FUNCTIONS)
def composed(b: Maker, node: Node, x: Node) -> Value:
    return _said(b, b.use(x), _FUNCTIONS[node.op.removeprefix("aten.")], node)


@word("hardtanh")
def hardtanh(b: Maker, node: Node, x: Node, low: float = -1.0, high: float = 1.0) -> Value:
    return _said(b, b.use(x), ("minimum", ("maximum", "x", low), high), node)


@word("leaky_relu")
def leaky_relu(b: Maker, node: Node, x: Node, slope: float = 0.01) -> Value:
    if not 0 <= slope <= 1:
        raise Refused(node, "`aten.leaky_relu` of a slope that is not between 0 and 1")
    return _said(b, b.use(x), ("maximum", "x", ("*", "x", slope)), node)


def _said(b: Maker, x: Value, function: Any, node: Node | None = None) -> Value:
    """The value of a function of x."""
    if function == "x":
        return x
    name, *parts = function
    operands = [Const(part, _ROLES.get(name, "factor")) if isinstance(part, int | float) else _said(b, x, part)
                for part in parts]  # fmt: skip
    return b.add(x.dims, Expr(name, operands), node=node)


@word("glu")
def glu(b: Maker, node: Node, x: Node, dim: int = -1) -> Value:
    """The first half of a dim, times the sigmoid of the other."""
    wide = x.shape[dim]
    halves = []
    for at in (0, wide // 2):
        half = node.like("aten.slice", x, dim, at, at + wide // 2, code="")
        halves.append(part(b, half, x, dim, at, at + wide // 2))
    gate = _said(b, halves[1], ("sigmoid", "x"))
    sides = [halves[0], gate]
    return b.add(b.broadcast(node, sides), Expr("*", sides), node=node)


@word("linalg_vector_norm", "norm")
def norm(b: Maker, node: Node, x: Node, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    """The root of the sum of squares, or the sum of absolute values, along dims."""
    if order not in (1, 2):
        raise Refused(node, f"a norm of order {order}")
    each = node.like("aten.square" if order == 2 else "aten.abs", x, shape=x.shape, code="")
    b.known[each] = _said(b, b.use(x), (each.op.removeprefix("aten."), "x"))
    total = node.like("aten.sum", each, code="" if order == 2 else node.code)
    b.known[total] = reduction(b, total, each, dim, keepdim)
    return _said(b, b.use(total), ("sqrt", "x"), node) if order == 2 else b.known[total]


@word("var", "std")
def variance(b: Maker, node: Node, x: Node, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
             correction: float | None = None) -> Value:  # fmt: skip
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    total = node.like("aten.var", code="" if node.op == "aten.std" else node.code)
    made = reduction(b, total, x, dim, keepdim)
    expr = (made.base or made).expr
    if expr is None or expr.word != "var":
        raise Refused(node, f"`{node.op}` of one place")
    count = int(unbiased) if correction is None else correction
    if count != 1:
        expr.named["correction"] = Const(count, "correction")
    return made if node.op == "aten.var" else _said(b, b.use_view(made), ("sqrt", "x"), node)


@word("distance_buckets")
def distance_buckets(b: Maker, node: Node, position: Node, buckets: int, furthest: int, both: bool) -> Value:
    value = b.use(position)
    named = {"max_distance": Const(furthest, "max_distance", 128), "both": Const(both, "both", True)}
    return b.add(value.dims, Expr("distance_buckets", [value, Const(buckets, "buckets")], named), "i64", node)


@word("_weight_norm")
def weight_norm(b: Maker, node: Node, x: Node, length: Node, dim: int = 0) -> Value:
    """x times `length` divided by its norm along all dims but one."""
    others = [at for at in range(len(x.shape)) if at != dim % len(x.shape)]
    before = node.like("aten.norm", shape=length.shape, code="")
    b.known[before] = norm(b, before, x, 2, others if dim != -1 else None, True)
    share = node.like("aten.div", shape=length.shape, code="")
    b.known[share] = sign(b, share, length, before)
    return sign(b, node.like("aten.mul", code=node.code), x, share)


@word("index_put")
def written(b: Maker, node: Node, x: Node, indices: Sequence[Any], value: Node, adds: bool = False) -> Value:
    """`x[mask] = value`, where the value is one for all places that the mask has."""
    mask = indices[0] if len(indices) == 1 else None
    if not isinstance(mask, Node) or str(mask.dtype) != "torch.bool" or adds:
        raise Refused(node, "`aten.index_put` at places that no mask says")
    inner = x.shape[len(mask.shape) :]
    if value.shape not in ((), inner, (1, *inner), (1,)):
        raise Refused(node, "`aten.index_put` of values for each place")
    places = b.lazy(mask)
    wide = node.like("aten.view", mask, shape=(*mask.shape, *[1] * len(inner)), dtype=mask.dtype)
    b.known[wide] = b.view(places, [*places.dims, *[()] * len(inner)])
    return where(b, node, wide, value, x)
