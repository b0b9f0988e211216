"""Views of tensors: what only orders, cuts and joins dims. A chain of them is one `rearrange`,
where it changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.importing.bodies.body import Value
from shardlang.importing.bodies.dims import Mismatch, viewed
from shardlang.importing.bodies.maker import Maker
from shardlang.importing.bodies.words import word
from shardlang.importing.steps.nodes import Node
from shardlang.importing.steps.problems import Refused


@word("view", "reshape", "flatten", "unflatten", "_unsafe_view")
def view(b: Maker, node: Node, x: Node, *_: Any) -> Value:
    value = b.lazy(x)
    try:
        return b.view(value, viewed(value.dims, node.shape), node)
    except Mismatch:
        raise Refused(node, "a view that cuts dims into parts that are no factors of them") from None


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
