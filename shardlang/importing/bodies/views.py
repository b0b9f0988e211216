"""Views of tensors: what only orders, cuts and joins dims. A chain of them is one `rearrange`,
where it changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.importing.bodies.body import Expr, Value
from shardlang.importing.bodies.dims import Mismatch, atoms, fresh, size, viewed
from shardlang.importing.bodies.maker import Maker
from shardlang.importing.bodies.words import word
from shardlang.importing.steps.nodes import Node


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
