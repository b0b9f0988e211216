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


@word("floor")
def floor(b: Maker, node: Node, x: Node) -> Value:
    return _infix(b, "//", b.use(x), 1.0, node)


@word("expm1")
def expm1(b: Maker, node: Node, x: Node) -> Value:
    return _infix(b, "-", _called(b, "exp", b.use(x)), 1.0, node)


@word("log1p")
def log1p(b: Maker, node: Node, x: Node) -> Value:
    return _called(b, "log", _infix(b, "+", b.use(x), 1.0), node)


@word("reciprocal")
def reciprocal(b: Maker, node: Node, x: Node) -> Value:
    value = b.use(x)
    return b.add(value.dims, Expr("/", [Const(1.0, "one"), value]), node=node)


@word("hardtanh")
def hardtanh(b: Maker, node: Node, x: Node, low: float = -1.0, high: float = 1.0) -> Value:
    return _between(b, b.use(x), low, high, node)


@word("relu6")
def relu6(b: Maker, node: Node, x: Node) -> Value:
    return _between(b, b.use(x), 0.0, 6.0, node)


@word("hardsigmoid", "hardswish")
def hard(b: Maker, node: Node, x: Node) -> Value:
    """x / 6 + 1 / 2 between 0 and 1, and x times it."""
    value = b.use(x)
    gate = _infix(b, "/", _between(b, _infix(b, "+", value, 3.0), 0.0, 6.0), 6.0)
    return gate if node.op == "aten.hardsigmoid" else b.add(value.dims, Expr("*", [value, gate]), node=node)


@word("leaky_relu")
def leaky_relu(b: Maker, node: Node, x: Node, slope: float = 0.01) -> Value:
    value = b.use(x)
    if not 0 <= slope <= 1:
        raise Refused(node, "`aten.leaky_relu` of a slope that is not between 0 and 1")
    return b.add(value.dims, Expr("maximum", [value, _infix(b, "*", value, slope)]), node=node)


@word("glu")
def glu(b: Maker, node: Node, x: Node, dim: int = -1) -> Value:
    """The first half of a dim, times the sigmoid of the other."""
    wide = x.shape[dim]
    halves = []
    for at in (0, wide // 2):
        half = node.like("aten.slice", x, dim, at, at + wide // 2, code="")
        halves.append(part(b, half, x, dim, at, at + wide // 2))
    gate = _called(b, "sigmoid", halves[1])
    sides = [halves[0], gate]
    return b.add(b.broadcast(node, sides), Expr("*", sides), node=node)


@word("mish")
def mish(b: Maker, node: Node, x: Node) -> Value:
    value = b.use(x)
    return b.add(value.dims, Expr("*", [value, _called(b, "tanh", _called(b, "softplus", value))]), node=node)


@word("log_sigmoid")
def log_sigmoid(b: Maker, node: Node, x: Node) -> Value:
    value = b.use(x)
    negative = b.add(value.dims, Expr("neg", [value]))
    return b.add(value.dims, Expr("neg", [_called(b, "softplus", negative)]), node=node)


@word("linalg_vector_norm", "norm")
def norm(b: Maker, node: Node, x: Node, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    """The root of the sum of squares, or the sum of absolute values, along dims."""
    if order not in (1, 2):
        raise Refused(node, f"a norm of order {order}")
    each = node.like("aten.square" if order == 2 else "aten.abs", x, shape=x.shape, code="")
    b.known[each] = _called(b, each.op.removeprefix("aten."), b.use(x))
    total = node.like("aten.sum", each, code="" if order == 2 else node.code)
    b.known[total] = reduction(b, total, each, dim, keepdim)
    return _called(b, "sqrt", b.use(total), node) if order == 2 else b.known[total]


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
    return made if node.op == "aten.var" else _called(b, "sqrt", b.use_view(made), node)


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


def _called(b: Maker, name: str, value: Value, node: Node | None = None) -> Value:
    return b.add(value.dims, Expr(name, [value]), node=node)


def _infix(b: Maker, sign: str, value: Value, number: Any, node: Node | None = None) -> Value:
    return b.add(value.dims, Expr(sign, [value, Const(number, "factor")]), node=node)


def _between(b: Maker, value: Value, low: float, high: float, node: Node | None = None) -> Value:
    bounded = b.add(value.dims, Expr("maximum", [value, Const(low, "low")]))
    return b.add(value.dims, Expr("minimum", [bounded, Const(high, "high")]), node=node)
