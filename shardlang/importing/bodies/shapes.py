"""Calls that order, cut, join and repeat dims, and those that make tensors from none. A chain of
views is one `rearrange`, where it changes anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shardlang.importing.bodies.body import Const, Expr, Value, new_dims
from shardlang.importing.bodies.dims import Atom, Mismatch, Term, atoms, flat, fresh, size, viewed
from shardlang.importing.bodies.maker import KINDS, Maker
from shardlang.importing.bodies.words import matmul, sign, word
from shardlang.importing.steps.nodes import Node
from shardlang.importing.steps.problems import Refused


@word("view", "reshape", "flatten", "unflatten", "_unsafe_view")
def view(b: Maker, node: Node, x: Node, *_: Any) -> Value:
    value = b.lazy(x)
    try:
        return b.view(value, viewed(value.dims, node.shape), node)
    except Mismatch:
        return _cut_anew(b, node, value)


def _cut_anew(b: Maker, node: Node, value: Value) -> Value:
    """A view that cuts dims into parts that are no factors of them: these become one dim, which is
    cut anew."""
    sizes = list(map(size, value.dims))
    left = alike(sizes, node.shape)
    right = alike(sizes[left:][::-1], node.shape[left:][::-1])
    before, middle, behind = value.dims[:left], value.dims[left : len(sizes) - right], value.dims[len(sizes) - right :]
    joined = b.use_view(b.view(value, [*before, atoms(middle), *behind]))
    new = [fresh(each) for each in node.shape[left : len(node.shape) - right]]
    for atom in (atom for term in new for atom in term):
        atom.declared = True
        atom.hint("parts", 12)
    dims = [*before, tuple(atom for term in new for atom in term), *behind]
    made = b.add(dims, Expr("relabel", [joined], into=dims), value.kind)
    return b.view(made, [*before, *new, *behind], node)


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many sizes are the same from the left."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@word("transpose", "t", "swapaxes")
def transpose(b: Maker, node: Node, x: Node, one: int = 0, other: int = 1) -> Value:
    value = b.lazy(x)
    dims = list(value.dims)
    dims[one], dims[other] = dims[other], dims[one]
    return b.view(value, dims, node)


@word("mT")
def matrices(b: Maker, node: Node, x: Node) -> Value:
    return transpose(b, node, x, -2, -1)


@word("numpy_T")
def reversed_(b: Maker, node: Node, x: Node) -> Value:
    value = b.lazy(x)
    return b.view(value, value.dims[::-1], node)


@word("permute")
def permute(b: Maker, node: Node, x: Node, order: Sequence[int]) -> Value:
    value = b.lazy(x)
    return b.view(value, [value.dims[at] for at in order], node)


@word("unsqueeze")
def unsqueeze(b: Maker, node: Node, x: Node, at: int) -> Value:
    value = b.lazy(x)
    at %= len(value.dims) + 1
    return b.view(value, [*value.dims[:at], (), *value.dims[at:]], node)


@word("squeeze")
def squeeze(b: Maker, node: Node, x: Node, at: Any = None) -> Value:
    value = b.lazy(x)
    return b.view(value, viewed(value.dims, node.shape), node)


@word("arange")
def arange(b: Maker, node: Node, *bounds: Any, name: str = "", pairs_of: Node | None = None, **_: Any) -> Value:
    term = (Atom(node.shape[0], {name: 0}, declared=True),) if name else fresh(math.prod(node.shape))
    if name and pairs_of is not None:
        term[0].pairs_of = b.number(pairs_of).of
    value = b.add([term], Expr("arange", [], {"dim": term}), "i64", node)
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    if step != 1:
        value = b.add([term], Expr("*", [value, Const(step, "step")]), _kind(step), node)
    if start:
        value = b.add([term], Expr("+", [value, Const(start, "start")]), _kind(start), node)
    return value


def _kind(number: Any) -> str:
    return "i64" if isinstance(number, int) else ""


@word("rand", "randn", "rand_like", "randn_like")
def random(b: Maker, node: Node, *given: Any, **__: Any) -> Value:
    like = node.op.endswith("_like")
    dims = list(b.lazy(given[0]).dims) if like else new_dims(node.shape)
    return b.add(dims, Expr(node.op.removeprefix("aten.").removesuffix("_like"), [], into=dims), "", node)


@word("expand", "broadcast_to")
def expand(b: Maker, node: Node, x: Node, sizes: Sequence[int], implicit: bool = False) -> Value:
    value = b.lazy(x)
    dims: list[Term] = [()] * (len(node.shape) - len(value.dims)) + list(value.dims)
    dims = [fresh(wide) if not flat(term) else term for term, wide in zip(dims, node.shape, strict=True)]
    if all(flat(term) == flat(other) for term, other in zip(dims, value.dims, strict=False)) and len(dims) == len(
        value.dims):  # fmt: skip
        return value
    return b.add(dims, Expr("expand", [b.use(x)], into=dims), value.kind, node)


@word("einsum")
def einsum(b: Maker, node: Node, text: str, tensors: Sequence[Node], **__: Any) -> Value:
    left, _, right = text.replace(" ", "").partition("->")
    letters = left.split(",")
    if "." in text or not right or any(len(set(each)) < len(each) for each in letters):
        raise Refused(node, f"`aten.einsum` of {text}")
    values: list[Value] = []
    terms: dict[str, Term] = {}
    for names, tensor in zip(letters, tensors, strict=True):
        value = b.use(tensor)
        # Another letter is another dim.
        others = {flat(term) for name, term in terms.items() if name not in names}
        mine = [flat(terms.get(name, ())) for name in names]
        twice = [term for term, here in zip(value.dims, mine, strict=True) if flat(term) in others - {here}]
        values.append(b.renamed(value, twice) if twice else value)
        for name, term in zip(names, values[-1].dims, strict=True):
            if flat(term) and flat(terms.get(name, ())):
                b.unify(node, terms[name], term)
            terms[name] = term if flat(term) else terms.get(name, term)
    into = [terms[name] for name in right]
    return b.add(into, Expr("einsum", list(values), into=into), KINDS.get(str(node.dtype), ""), node)


@word("baddbmm")
def baddbmm(b: Maker, node: Node, x: Node, left: Node, right: Node, beta: float = 1, alpha: float = 1) -> Value:
    product = node.like("aten.matmul", left, right)
    b.known[product] = matmul(b, product, left, right)
    scaled = product
    if alpha != 1:
        scaled = node.like("aten.mul", product, alpha)
        b.known[scaled] = sign(b, scaled, product, alpha)
    return sign(b, node.like("aten.add"), scaled, x, alpha=beta)
