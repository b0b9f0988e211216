"""The abstract syntax of a .shard file: frozen nodes, each with its span. Made by parse, read by check and format.

Comments are not nodes: `File.comments` keeps them by span, for the formatter.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar, dataclass_transform

from shardlang.source import Source, Span

T = TypeVar("T")


class Node:
    """Shows a node by its fields; nodes are compared by identity (two equal texts at two places are two nodes)."""

    __slots__ = ()

    def __repr__(self) -> str:
        inner = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "span")  # type: ignore[arg-type]
        return f"{type(self).__name__}({inner})"


@dataclass_transform(frozen_default=True, eq_default=False)
def node(cls: type[T]) -> type[T]:
    """A slotted dataclass, frozen for the type checker alone: what freezes it at run time takes Python twice as long
    to make, and every command pays for these classes at its start."""
    # Without a text of its own a dataclass works out its signature for one.
    cls.__doc__ = cls.__doc__ or cls.__name__
    return dataclass(slots=True, eq=False, repr=False)(cls)


# --- names and expressions ---------------------------------------------------


@node
class Name(Node):
    text: str
    span: Span


@node
class Number(Node):
    """`text` as written (`25MB`, `1_000`, `3e-4`); `value` in base units (bytes, bit/s -> bytes/s, seconds, FLOP/s)."""

    text: str
    value: int | float
    unit: str
    span: Span


@node
class String(Node):
    value: str
    span: Span


@node
class Bool(Node):
    value: bool
    span: Span


@node
class Tuple(Node):
    items: tuple[Expr, ...]
    span: Span


@node
class Range(Node):
    """`0..4`, end exclusive."""

    start: Expr
    end: Expr
    span: Span


@node
class Attribute(Node):
    """`value.name`."""

    value: Expr
    name: Name
    span: Span


@node
class Index(Node):
    """`value[index]`."""

    value: Expr
    index: Expr
    span: Span


@node
class Unary(Node):
    """`op` is one of `-`, `not`."""

    op: str
    operand: Expr
    span: Span


@node
class Binary(Node):
    """`op` is one of `+ - * / @ ** == != < <= > >= and or`; `op_span` is its place."""

    op: str
    left: Expr
    right: Expr
    op_span: Span
    span: Span


@node
class Conditional(Node):
    """`then if condition else otherwise`."""

    then: Expr
    condition: Expr
    otherwise: Expr
    span: Span


@node
class Keyword(Node):
    """`name = value` in a call."""

    name: Name
    value: Expr
    span: Span


@node
class Field(Node):
    """`name: type` or `name: type < bound` in the call of a data source."""

    name: Name
    type: TensorType
    bound: Expr | None
    span: Span


@node
class Call(Node):
    """`callee(positional, keywords)`; `arrow` is the type after `->` in `einsum(x, w -> [..., out])`."""

    callee: Expr
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...]
    fields: tuple[Field, ...]
    arrow: TensorType | None
    span: Span


@node
class Pipe(Node):
    """`left |> right`: `right` is a Name, Attribute, Index or Call that gets `left` as its first argument."""

    left: Expr
    right: Expr
    span: Span


Expr = (
    Name | Number | String | Bool | Tuple | Range | Attribute | Index | Unary | Binary | Conditional | Call | Pipe
)

# --- types -------------------------------------------------------------------


@node
class DimFactor(Node):
    """One factor of a dim: a name or an integer, with the axes after `@` (major first)."""

    dim: Name | Number
    axes: tuple[Name, ...]
    span: Span


@node
class DimTerm(Node):
    """`batch`, `heads@mp * head_dim`, `28`; or `...` where `ellipsis` (then no factors)."""

    factors: tuple[DimFactor, ...]
    ellipsis: bool
    span: Span


@node
class TensorType(Node):
    """`f32[batch@dp, d] +mp ^cp`; `dtype` is None where none is written."""

    dtype: Name | None
    dims: tuple[DimTerm, ...]
    pending: tuple[Name, ...]
    replicated: tuple[Name, ...]
    span: Span


# --- models ------------------------------------------------------------------


@node
class Formal(Node):
    """`name: kind = default`; kind is the Name of `dim int float bool str`, or a TensorType (a tensor)."""

    name: Name
    kind: Name | TensorType
    default: Expr | None
    span: Span


@node
class DimEntry(Node):
    name: Name
    value: Expr
    span: Span


@node
class DimDecl(Node):
    """`dim a = 1, b = 2 * a`, at file level or in a model."""

    entries: tuple[DimEntry, ...]
    doc: str
    span: Span


@node
class Layer(Node):
    """`layer name[count] = value`; `count` is None for a single layer. `value` is a Call."""

    name: Name
    count: Expr | None
    value: Expr
    doc: str
    span: Span


@node
class Tensor(Node):
    """`param name: type = init` or `state name: type = init` (`keyword` tells which)."""

    keyword: str
    name: Name
    type: TensorType
    init: Expr
    doc: str
    span: Span


@node
class Assign(Node):
    name: Name
    value: Expr
    span: Span


@node
class Return(Node):
    value: Expr
    span: Span


@node
class Forward(Node):
    """`forward(x: [..]) -> [..] { body }`."""

    formals: tuple[Formal, ...]
    result: TensorType | None
    body: tuple[Assign | Return, ...]
    doc: str
    span: Span


@node
class If(Node):
    """Members under a static condition."""

    condition: Expr
    then: tuple[Member, ...]
    otherwise: tuple[Member, ...]
    span: Span


Member = DimDecl | Layer | Tensor | Forward | If


@node
class Model(Node):
    name: Name
    formals: tuple[Formal, ...]
    members: tuple[Member, ...]
    doc: str
    span: Span


@node
class Function(Node):
    """`fn name(x: [..], p: float = 0.1) -> [..] { body }`: a model without members."""

    name: Name
    formals: tuple[Formal, ...]
    result: TensorType | None
    body: tuple[Assign | Return, ...]
    doc: str
    span: Span


# --- strategies --------------------------------------------------------------


@node
class Segment(Node):
    """One part of a selector: `name` may hold `*`; `**` alone is any depth. `index`: None, "*", an int or a Range."""

    name: str
    index: str | int | tuple[int, int] | None
    span: Span


@node
class Selector(Node):
    segments: tuple[Segment, ...]
    span: Span


@node
class MeshAxis(Node):
    """`dp = 2`; `size` is None for `auto`."""

    name: Name
    size: Expr | None
    span: Span


@node
class Mesh(Node):
    axes: tuple[MeshAxis, ...]
    span: Span


@node
class AxisUse(Node):
    """An axis in a rule; `yields` where written `tp?`."""

    name: Name
    yields: bool
    span: Span


@node
class DimPath(Node):
    """A dim in a rule: `hidden`, or by path `fc1.out`."""

    parts: tuple[Name, ...]
    span: Span

    @property
    def text(self) -> str:
        return ".".join(p.text for p in self.parts)


@node
class Split(Node):
    """`split dims over axes [uneven | sizes (..)]`."""

    dims: tuple[DimPath, ...]
    axes: tuple[AxisUse, ...]
    uneven: bool
    sizes: tuple[Expr, ...] | None
    span: Span


@node
class ShardEntry(Node):
    """One dim of a positional rule: a number of cuts, or axis names (`_` is none: an empty tuple)."""

    cuts: Number | None
    axes: tuple[Name, ...]
    span: Span


@node
class ShardTuple(Node):
    entries: tuple[ShardEntry, ...]
    span: Span


@node
class Shard(Node):
    """`shard ((2, 4), (4, 1)) -> ((8, 1))`."""

    inputs: tuple[ShardTuple, ...]
    outputs: tuple[ShardTuple, ...] | None
    span: Span


@node
class Pin(Node):
    """`[batch@dp, hidden@mp] +cp`."""

    type: TensorType
    span: Span


@node
class StageEntry(Node):
    stage: Expr
    selectors: tuple[Selector, ...]
    span: Span


@node
class Stages(Node):
    """`stages over pp { .. }` or `stages over pp balanced, virtual = 2`."""

    axis: Name
    balanced: bool
    virtual: Expr | None
    entries: tuple[StageEntry, ...]
    span: Span


@node
class Microbatches(Node):
    count: Expr
    span: Span


@node
class Schedule(Node):
    name: String
    span: Span


@node
class Zero(Node):
    level: Number
    axes: tuple[Name, ...]
    span: Span


@node
class Bucket(Node):
    """`bucket gradients 25MB`."""

    size: Number
    span: Span


@node
class Recompute(Node):
    span: Span


@node
class Place(Node):
    """`place on host` or `place on device`."""

    where: Name
    span: Span


@node
class Strict(Node):
    span: Span


@node
class At(Node):
    selectors: tuple[Selector, ...]
    rules: tuple[Rule, ...]
    span: Span


Rule = (
    Mesh | Split | Shard | Pin | Stages | Microbatches | Schedule | Zero | Bucket | Recompute | Place | Strict | At
)


@node
class Strategy(Node):
    name: Name
    rules: tuple[Rule, ...]
    doc: str
    span: Span


# --- training and hardware ---------------------------------------------------


@node
class Setting(Node):
    """`name = value`; `keyword` is "metric" for `metric name = value`; `at` holds the selectors of `optimizer at`."""

    keyword: str
    name: Name
    at: tuple[Selector, ...]
    value: Expr
    span: Span


@node
class Train(Node):
    settings: tuple[Setting, ...]
    doc: str
    span: Span


@node
class Hardware(Node):
    """`device h100 { .. }` or `cluster pod { .. }` (`keyword` tells which)."""

    keyword: str
    name: Name
    settings: tuple[Setting, ...]
    doc: str
    span: Span


# --- files -------------------------------------------------------------------


@node
class Use(Node):
    """`use std.nn: Linear` (`path` "std.nn") or `use "./layers.shard": Block` (`file` true)."""

    path: str
    file: bool
    names: tuple[Name, ...]
    path_span: Span
    span: Span


Item = Use | DimDecl | Model | Function | Strategy | Train | Hardware


@node
class Comment(Node):
    """`text` with its `#`; `span` covers it."""

    text: str
    span: Span


@node
class File(Node):
    source: Source
    items: tuple[Item, ...]
    comments: tuple[Comment, ...]
