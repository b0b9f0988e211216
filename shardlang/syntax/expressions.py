"""Nodes of names, expressions and tensor types, for statements of all kinds, and the base of all
nodes. See `syntax.ast`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields
from functools import cache
from typing import Any, TypeVar, dataclass_transform

from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def node(cls: type[T]) -> type[T]:
    """The class as a record with slots."""
    return dataclass(frozen=True, slots=True, eq=False)(cls)


@node
class Node:
    """`span`: the node's text; it is given by name."""

    span: Span = field(kw_only=True, repr=False)


def nodes_of(items: tuple[Node, ...]) -> Iterator[Node]:
    """The nodes, and all below them, in the order of the text; without recursion."""
    waiting: list[Any] = [items]
    while waiting:
        found = waiting.pop()
        kind = found.__class__
        if kind is tuple:
            waiting += found[::-1]
        elif issubclass(kind, Node):
            yield found
            waiting += [getattr(found, name) for name in _parts(kind)]


@cache
def _parts(kind: type) -> list[str]:
    """The fields of a node's class that may hold nodes, the last first."""
    return [f.name for f in fields(kind) if f.name != "span" and f.type != "str"][::-1]


# --- names and expressions ---------------------------------------------------


@node
class Name(Node):
    text: str


@node
class Number(Node):
    """`text` as written (`25MB`, `3e-4`); `value` in base units (bytes, bytes/s, s, FLOP/s)."""

    text: str
    value: int | float
    unit: str


@node
class String(Node):
    value: str


@node
class Bool(Node):
    value: bool


@node
class Tuple(Node):
    items: tuple[Expr, ...]


@node
class Range(Node):
    """`0..4`, end exclusive; `0..8..2`: each second."""

    start: Expr
    end: Expr
    step: Expr | None = None


@node
class Attribute(Node):
    """`value.name`."""

    value: Expr
    name: Name


@node
class Index(Node):
    """`value[index]`; None: `value[*]`, each of them."""

    value: Expr
    index: Expr | None


@node
class Pick(Node):
    """`value[seq = 0]`: an index, or a range, by dim."""

    value: Expr
    places: tuple[Keyword, ...]


@node
class Unary(Node):
    """`op` is one of `-`, `not`."""

    op: str
    operand: Expr


@node
class Binary(Node):
    """`op` is one of `+ - * / // % @ ** == != < <= > >= and or`."""

    op: str
    left: Expr
    right: Expr


@node
class Conditional(Node):
    """`then if condition else otherwise`."""

    then: Expr
    condition: Expr
    otherwise: Expr


@node
class Keyword(Node):
    """`name = value` in a call."""

    name: Name
    value: Expr


@node
class Field(Node):
    """`name: type` or `name: type < bound` in the call of a data source."""

    name: Name
    type: TensorType
    bound: Expr | None = None


@node
class Call(Node):
    """`callee(positional, keywords)`; `arrow`: the type after `->` in `einsum(x, w -> [..])`."""

    callee: Expr
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...]
    fields: tuple[Field, ...]
    arrow: TensorType | None


@node
class Pipe(Node):
    """`left |> right`: `right` is a Name, Attribute, Index or Call; `left` its first argument."""

    left: Expr
    right: Expr


Expr = Name | Number | String | Bool | Tuple | Range | Attribute | Index | Unary | Binary | Conditional | Call | Pipe

# --- types -------------------------------------------------------------------


@node
class DimFactor(Node):
    """One factor of a dim: a name or an integer, with the axes after `@` (major first)."""

    dim: Name | Number
    axes: tuple[Name, ...]


@node
class DimTerm(Node):
    """`batch`, `heads@mp * head_dim`, `28`; or `...` where `ellipsis` (then no factors)."""

    factors: tuple[DimFactor, ...]
    ellipsis: bool


@node
class TensorType(Node):
    """`f32[batch@dp, d] +mp ^cp`; `dtype` is None where none is written."""

    dtype: Name | None
    dims: tuple[DimTerm, ...]
    pending: tuple[Name, ...]
    replicated: tuple[Name, ...]
