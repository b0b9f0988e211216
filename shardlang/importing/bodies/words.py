"""Each call of ATen as the language says it: its expression, and the dims of what it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from shardlang.importing.bodies.body import Bare, Const, Expr, Twice, Value
from shardlang.importing.bodies.dims import Atom, Term, atoms, flat, size
from shardlang.importing.bodies.maker import KINDS, Maker
from shardlang.importing.steps.nodes import SIZE, Node
from shardlang.importing.steps.problems import Refused
from shardlang.importing.steps.unfold import is_number

Word = Callable[..., Value]
WORDS: dict[str, Word] = {}

_SAME = ("relu", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "square", "abs", "sin", "cos", "detach",
         "erf", "neg")  # fmt: skip
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
          "ge": ">=", "remainder": "%"}  # fmt: skip
_PAIRS = {"logical_and": "and", "logical_or": "or", "pow": "**", "maximum": "maximum", "minimum": "minimum"}
_BASE = 10000
_TRUTHS = ("eq", "ne", "lt", "le", "gt", "ge")


def word(*names: str) -> Callable[[Word], Word]:
    def known(function: Word) -> Word:
        WORDS.update({f"aten.{name}": function for name in names})
        return function

    return known


def extent(b: Maker, node: Node, x: Node, at: int) -> Value:
    """The size of a dim, which is written where it is read (`Maker.number`)."""
    return b.lazy(x)


WORDS[SIZE] = extent


@word(*_SAME)
def same(b: Maker, node: Node, x: Node) -> Value:
    value = b.use(x)
    return b.add(value.dims, Expr(node.op.removeprefix("aten."), [value]), value.kind, node)


@word("gelu")
def gelu(b: Maker, node: Node, x: Node, approximate: str = "none") -> Value:
    value = b.use(x)
    named = {} if approximate == "none" else {"approximate": Const(approximate, "approximate")}
    return b.add(value.dims, Expr("gelu", [value], named), node=node)


@word(*_SIGNS)
def sign(b: Maker, node: Node, left: Any, right: Any, alpha: float = 1, rounding_mode: str | None = None) -> Value:
    name = node.op.removeprefix("aten.")
    if rounding_mode not in (None, "floor"):
        raise Refused(node, f"`{node.op}` that rounds towards 0")
    sides = [b.number(left), b.number(right)]
    if name in ("mul", "div"):
        b.roots(sides)
    if alpha != 1:
        sides[1] = b.add(sides[1].dims, Expr("*", [Const(alpha, "alpha"), sides[1]]), sides[1].kind)
    dims = b.broadcast(node, sides)
    kind = "bool" if name in _TRUTHS else KINDS.get(str(node.dtype), "")
    return b.add(dims, Expr("//" if rounding_mode else _SIGNS[name], sides), kind, node)


@word(*_PAIRS)
def pair(b: Maker, node: Node, left: Any, right: Any) -> Value:
    sides = [b.number(left), b.number(right)]
    expr = Expr(_PAIRS[node.op.removeprefix("aten.")], sides)
    return b.add(b.broadcast(node, sides), expr, KINDS.get(str(node.dtype), ""), node)


@word("logical_not")
def negation(b: Maker, node: Node, x: Node) -> Value:
    value = b.use(x)
    return b.add(value.dims, Expr("not", [value]), "bool", node)


@word("softplus", "elu")
def soft(b: Maker, node: Node, x: Node, *settings: Any) -> Value:
    usual = (1, 20) if node.op == "aten.softplus" else (1, 1, 1)
    if settings != usual[: len(settings)]:
        raise Refused(node, f"`{node.op}` with further settings than usual")
    return same(b, node, x)


@word("clamp")
def clamp(b: Maker, node: Node, x: Any, low: Any = None, high: Any = None, min: Any = None, max: Any = None) -> Value:
    value = b.use(x)
    for word_, bound in (("maximum", min if low is None else low), ("minimum", max if high is None else high)):
        if bound is not None:
            sides = [value, b.number(bound)]
            value = b.add(b.broadcast(node, sides), Expr(word_, sides), value.kind, node)
    return value


@word("to")
def cast(b: Maker, node: Node, x: Node, *_: Any, **__: Any) -> Value:
    value, kind = b.use(x), KINDS.get(str(node.dtype), "")
    if kind == value.kind:
        return value
    if kind == "bool":
        return b.add(value.dims, Expr("!=", [value, Const(0, "zero")]), "bool", node)
    return b.add(value.dims, Expr("cast", [value, Const(Bare(kind or "f32"), "dtype")]), kind, node)


@word("rsub")
def reverse(b: Maker, node: Node, left: Any, right: Any, alpha: float = 1) -> Value:
    return sign(b, node.like("aten.sub"), right, left, alpha)


@word("where")
def where(b: Maker, node: Node, condition: Any, then: Any, otherwise: Any) -> Value:
    sides = [b.number(condition), b.number(then), b.number(otherwise)]
    return choice(b, node, sides)


def choice(b: Maker, node: Node, sides: list[Any]) -> Value:
    """`where`; of truth values that are given, `and`, `or` and `not`."""
    dims = b.broadcast(node, sides)
    there, then, otherwise = sides
    fixed = next((at for at in (1, 2) if isinstance(sides[at], Const) and isinstance(sides[at].value, bool)), None)
    if fixed is None or isinstance(there, Const):
        return b.add(dims, Expr("where", sides), KINDS.get(str(node.dtype), ""), node)
    truth = sides[fixed].value
    # where(c, true, x) is c or x; where(c, false, x) is not c and x; so is it with x first.
    if truth != (fixed == 1):
        there = b.add(there.dims, Expr("not", [there]), "bool")
    other = otherwise if fixed == 1 else then
    if isinstance(other, Const):
        found: Value = there
        return found
    both = [there, other]
    return b.add(b.broadcast(node, both), Expr("or" if truth else "and", both), "bool", node)


@word("masked_fill")
def masked_fill(b: Maker, node: Node, x: Any, mask: Any, value: Any) -> Value:
    if is_number(mask) and not mask.value.any() and node.shape == x.shape:
        return b.use(x)
    return where(b, node, mask, value, x)


@word("dropout", "feature_dropout")
def dropout(b: Maker, node: Node, x: Node, p: float, train: bool) -> Value:
    value = b.use(x)
    name = "dropout" if node.op == "aten.dropout" else "dropout2d"
    return b.add(value.dims, Expr(name, [value], {"p": Const(p, "p")}), node=node)


@word("linear")
def linear(b: Maker, node: Node, x: Node, weight: Node, bias: Node | None = None) -> Value:
    value, matrix = b.use(x), b.use(weight)
    out, inner = (b.solid(matrix, at) for at in (0, 1))
    b.unify(node, value.dims[-1], inner)
    product = Expr("einsum", [value, matrix], into=[*value.dims[:-1], out])
    made = b.add([*value.dims[:-1], out], product, node=node)
    if bias is None:
        return made
    term = b.use(bias)
    b.unify(node, b.solid(term, 0), out)
    return b.add(made.dims, Expr("+", [made, term]), node=node)


@word("matmul", "bmm", "mm")
def matmul(b: Maker, node: Node, left: Node, right: Node) -> Value:
    x, y = b.ordered(left), b.ordered(right)
    turned = x.base is not None or y.base is not None
    if len(x.dims) < 2 or len(y.dims) < 2:
        raise Refused(node, "a product with a vector")
    y = b.apart(node, y, [y.dims[-1]], x)
    try:
        b.unify(node, x.dims[-1], y.dims[-2])
    except Twice:
        y = b.use_view(y)
        into = [*y.dims[:-2], x.dims[-1], y.dims[-1]]
        y = b.add(into, Expr("relabel", [y], into=into))
    leading = b.aligned(node, x.dims[:-2], y.dims[:-2])
    made = [*leading, x.dims[-2], y.dims[-1]]
    if not turned and all(flat(term) for value in (x, y) for term in value.dims[-2:]):
        return b.add(made, Expr("@", [x, y]), node=node)
    return b.add(made, Expr("einsum", [x.base or x, y.base or y], into=made), node=node)


@word("embedding")
def embedding(b: Maker, node: Node, table: Node, ids: Node, padding: int = -1, scale: bool = False,
              sparse: bool = False) -> Value:  # fmt: skip
    if is_number(ids):
        table_ = b.use(table)
        b.solid(table_, 0)
        b.hint(table_.dims[0], "types", 1)
        b.hint(table_.dims[1], "d", 6)
        index = Const(int(ids.value.flatten()[0]), "row")
        return b.add([b.solid(table_, 1)], Expr("pick", [table_], {"pick": (table_.dims[0], index)}), node=node)
    named = {"padding": Const(padding, "padding")} if padding >= 0 else {}
    rows, value = b.use(table), b.use(ids)
    drawn = table.stored is not None and b.shared.starts[table.stored].kind not in ("zeros", "given")
    if padding >= 0 and drawn and not b.shared.given and not table.value[padding].any():
        fact = f"row {padding} of `{table.name}` starts as zeros in the module, and is drawn here"
        b.shared.differences[fact] = "SH608"
    b.hint(rows.dims[0], "max_len" if value.counts else "vocab", 1)
    b.hint(rows.dims[1], "d", 6)
    return b.add([*value.dims, b.solid(rows, 1)], Expr("embedding", [value, rows], named), node=node)


@word("layer_norm")
def layer_norm(b: Maker, node: Node, x: Node, shape: Sequence[int], weight: Any = None, bias: Any = None,
               eps: float = 1e-5, cudnn: bool = True) -> Value:  # fmt: skip
    return _norm(b, node, "layer_norm", x, shape, [weight, bias], eps)


@word("rms_norm")
def rms_norm(b: Maker, node: Node, x: Node, shape: Sequence[int], weight: Any = None, eps: float | None = None,
             ) -> Value:  # fmt: skip
    if eps is None:
        import torch

        eps = torch.finfo(node.dtype).eps
    return _norm(b, node, "rms_norm", x, shape, [weight], eps)


def _norm(b: Maker, node: Node, name: str, x: Node, shape: Sequence[int], weights: list[Any], eps: float) -> Value:
    value = b.use(x)
    over = value.dims[-len(shape) :]
    b.hint(over[-1], "d", 5)
    operands = [value]
    for weight in weights:
        if weight is not None:
            operands.append(b.use(weight))
            for mine, theirs in zip(over, operands[-1].dims, strict=True):
                b.unify(node, mine, theirs)
    named = {"over": _over(over), "eps": Const(eps, "eps")}
    return b.add(value.dims, Expr(name, operands, named), node=node)


def _over(terms: Sequence[Term]) -> Any:
    return terms[0] if len(terms) == 1 else tuple(terms)


@word("softmax", "log_softmax", "_softmax")
def softmax(b: Maker, node: Node, x: Node, dim: int, *_: Any) -> Value:
    value = b.use(x)
    name = node.op.removeprefix("aten.").lstrip("_")
    return b.add(value.dims, Expr(name, [value], {"over": value.dims[dim]}), node=node)


@word("sum", "mean", "amax", "amin", "logsumexp")
def reduction(b: Maker, node: Node, x: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    value = b.lazy(x)
    rank = len(value.dims)
    at = list(range(rank)) if dim in (None, []) else [d % rank for d in ([dim] if isinstance(dim, int) else dim)]
    shape = [() if d in at else value.dims[d] for d in range(rank) if keepdim or d not in at]
    over = [value.dims[d] for d in at if flat(value.dims[d])]
    if at and not over:
        return b.view(value, shape, node)
    left = [value.dims[d] for d in range(rank) if d not in at]
    if len(over) < len(at):
        value = b.view(value, [term for d, term in enumerate(value.dims) if d not in at or flat(term)])
    value = b.use_view(value)
    named = {"over": _over(over)} if left else {}
    made = b.add(left, Expr(node.op.removeprefix("aten."), [value], named), value.kind, node)
    return b.view(made, shape) if keepdim else made


@word("scaled_dot_product_attention")
def attention(b: Maker, node: Node, q: Node, k: Node, v: Node, mask: Any = None, p: float = 0.0,
              causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
              window: int | None = None, softcap: float | None = None, keep: Node | None = None) -> Value:  # fmt: skip
    queries, keys, values = b.use(q), b.use(k), b.use(v)
    for one, other in ((keys, queries), (values, keys)):
        for mine, theirs in zip(one.dims[:-3], other.dims[:-3], strict=True):
            b.unify(node, mine, theirs)
    if size(queries.dims[-3]) == size(keys.dims[-3]):
        b.unify(node, queries.dims[-3], keys.dims[-3])
    b.unify(node, keys.dims[-3], values.dims[-3])
    b.unify(node, keys.dims[-2], values.dims[-2])
    b.unify(node, queries.dims[-1], keys.dims[-1])
    if size(queries.dims[-1]) == size(values.dims[-1]):
        b.unify(node, queries.dims[-1], values.dims[-1])
    hints = ((queries, -3, "heads", 0), (queries, -1, "head_dim", 0), (queries, -2, "seq", 9),
             (keys, -3, "kv_heads", 1), (values, -1, "value_dim", 1), (keys, -2, "keys", 9))  # fmt: skip
    for value, at, name, rank in hints:
        # Another name is for another dim.
        if value is queries or flat(value.dims[at]) != flat(queries.dims[at]):
            b.hint(value.dims[at], name, rank)
    for value, name in ((queries, "q"), (keys, "k"), (values, "v")):
        if value.expr is not None and value.expr.word in ("rearrange", "rotary"):
            value.name = value.name or name
    named: dict[str, Any] = {"causal": Const(bool(causal), "causal", False)}
    if scale is not None and not math.isclose(scale, size(queries.dims[-1]) ** -0.5, rel_tol=1e-6):
        named["scale"] = Const(scale, "scale")
    if window is not None:
        named["window"] = Const(window, "window")
    if softcap is not None:
        named["softcap"] = Const(softcap, "softcap")
    biases = [] if mask is None else [_bias(b, node, mask, queries, keys)]
    if p:
        named["p"] = Const(p, "p")
    kept = [] if keep is None else [_kept(b, node, keep, keys)]
    expr = Expr("attention", [queries, keys, values, *kept, *biases], named, keys=("bias",) * len(biases))
    made = b.add([*queries.dims[:-1], values.dims[-1]], expr, node=node)
    made.name = made.name or "mixed"
    return made


def _kept(b: Maker, node: Node, keep: Node, keys: Value) -> Value:
    """Which keys are seen, [batch, keys]."""
    found = b.use(keep)
    b.unify(node, keys.dims[0], found.dims[0])
    b.unify(node, keys.dims[-2], found.dims[-1])
    return found


def _unify_bias(b: Maker, node: Node, bias: Value, queries: Value) -> None:
    for mine, theirs in zip(queries.dims[:-1][::-1], bias.dims[-2::-1], strict=False):
        if flat(theirs):
            if size(mine) != size(theirs):
                raise Refused(node, "a bias of attention whose heads or queries are others")
            b.unify(node, mine, theirs)


def _bias(b: Maker, node: Node, mask: Node, queries: Value, keys: Value) -> Value:
    """The value that is added to the scores, with a name of its own for the keys."""
    bias = b.use(mask)
    if bias.kind == "bool":
        sides = [bias, Const(0.0, "zero"), Const(-1e30, "hidden")]
        bias = b.add(bias.dims, Expr("where", sides))
    elif bias.kind:
        bias = b.add(bias.dims, Expr("cast", [bias, Const(Bare("f32"), "dtype")]))
    try:
        _unify_bias(b, node, bias, queries)
    except Twice:
        # Its rows and columns have the names of each other.
        wide = [mine if flat(theirs) else () for mine, theirs in zip(queries.dims[:-1][::-1], bias.dims[-2::-1],
                                                                     strict=False)][::-1]  # fmt: skip
        into = [*wide, (Atom(size(bias.dims[-1]), {"key": 8}),)]
        b.body.copies.append((into[-1][0], flat(queries.dims[-2])[0]))
        return b.add(into, Expr("relabel", [bias], into=into), bias.kind)
    here, there = flat(keys.dims[-2]), flat(bias.dims[-1])
    if there and here != there and there[0] not in b.body.sources():
        if set(here) & set(atoms(queries.dims)):
            return bias
        b.unify(node, keys.dims[-2], bias.dims[-1])
    return bias


@word("rotary")
def rotary(b: Maker, node: Node, x: Node, base: float, along: int = -2, pairs: str = "halves", part: int | None = None,
           scales: tuple[float, ...] = ()) -> Value:  # fmt: skip
    value = b.use(x)
    b.hint(value.dims[-1], "head_dim", 1)
    named = {"over": value.dims[-1], "along": value.dims[along]}
    given = {"base": (base, _BASE), "pairs": (pairs, "halves"), "part": (part, None), "scales": (scales, ())}
    kept = {name: Const(each, name) for name, (each, usual) in given.items() if each != usual}
    return b.add(value.dims, Expr("rotary", [value], {**named, **kept}), node=node)
