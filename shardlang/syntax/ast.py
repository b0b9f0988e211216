"""The abstract syntax of a .shard file: frozen nodes, each with its span. Made by parse, read by check and format.

Comments are not nodes: `File.comments` keeps them by span, for the formatter.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlang.source import Source, Span

# --- names and expressions ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name:
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Number:
    """`text` as written (`25MB`, `1_000`, `3e-4`); `value` in base units (bytes, bit/s -> bytes/s, seconds, FLOP/s)."""

    text: str
    value: int | float
    unit: str
    span: Span


@dataclass(frozen=True, slots=True)
class String:
    value: str
    span: Span


@dataclass(frozen=True, slots=True)
class Bool:
    value: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Tuple:
    items: tuple[Expr, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Range:
    """`0..4`, end exclusive."""

    start: Expr
    end: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Attribute:
    """`value.name`."""

    value: Expr
    name: Name
    span: Span


@dataclass(frozen=True, slots=True)
class Index:
    """`value[index]`."""

    value: Expr
    index: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Unary:
    """`op` is one of `-`, `not`."""

    op: str
    operand: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """`op` is one of `+ - * / @ ** == != < <= > >= and or`; `op_span` is its place."""

    op: str
    left: Expr
    right: Expr
    op_span: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Conditional:
    """`then if condition else otherwise`."""

    then: Expr
    condition: Expr
    otherwise: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Keyword:
    """`name = value` in a call."""

    name: Name
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Field:
    """`name: type` or `name: type < bound` in the call of a data source."""

    name: Name
    type: TensorType
    bound: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """`callee(positional, keywords)`; `arrow` is the type after `->` in `einsum(x, w -> [..., out])`."""

    callee: Expr
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...]
    fields: tuple[Field, ...]
    arrow: TensorType | None
    span: Span


@dataclass(frozen=True, slots=True)
class Pipe:
    """`left |> right`: `right` is a Name, Attribute, Index or Call that gets `left` as its first argument."""

    left: Expr
    right: Expr
    span: Span


Expr = (
    Name | Number | String | Bool | Tuple | Range | Attribute | Index | Unary | Binary | Conditional | Call | Pipe
)

# --- types -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DimFactor:
    """One factor of a dim: a name or an integer, with the axes after `@` (major first)."""

    dim: Name | Number
    axes: tuple[Name, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class DimTerm:
    """`batch`, `heads@mp * head_dim`, `28`; or `...` where `ellipsis` (then no factors)."""

    factors: tuple[DimFactor, ...]
    ellipsis: bool
    span: Span


@dataclass(frozen=True, slots=True)
class TensorType:
    """`f32[batch@dp, d] +mp ^cp`; `dtype` is None where none is written."""

    dtype: Name | None
    dims: tuple[DimTerm, ...]
    pending: tuple[Name, ...]
    replicated: tuple[Name, ...]
    span: Span


# --- models ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Formal:
    """`name: kind = default`; kind is the Name of `dim int float bool str`, or a TensorType (a tensor)."""

    name: Name
    kind: Name | TensorType
    default: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class DimEntry:
    name: Name
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class DimDecl:
    """`dim a = 1, b = 2 * a`, at file level or in a model."""

    entries: tuple[DimEntry, ...]
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class Layer:
    """`layer name[count] = value`; `count` is None for a single layer. `value` is a Call."""

    name: Name
    count: Expr | None
    value: Expr
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class Tensor:
    """`param name: type = init` or `state name: type = init` (`keyword` tells which)."""

    keyword: str
    name: Name
    type: TensorType
    init: Expr
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class Assign:
    name: Name
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Return:
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Forward:
    """`forward(x: [..]) -> [..] { body }`."""

    formals: tuple[Formal, ...]
    result: TensorType | None
    body: tuple[Assign | Return, ...]
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class If:
    """Members under a static condition."""

    condition: Expr
    then: tuple[Member, ...]
    otherwise: tuple[Member, ...]
    span: Span


Member = DimDecl | Layer | Tensor | Forward | If


@dataclass(frozen=True, slots=True)
class Model:
    name: Name
    formals: tuple[Formal, ...]
    members: tuple[Member, ...]
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class Function:
    """`fn name(x: [..], p: float = 0.1) -> [..] { body }`: a model without members."""

    name: Name
    formals: tuple[Formal, ...]
    result: TensorType | None
    body: tuple[Assign | Return, ...]
    doc: str
    span: Span


# --- strategies --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a selector: `name` may hold `*`; `**` alone is any depth. `index`: None, "*", an int or a Range."""

    name: str
    index: str | int | tuple[int, int] | None
    span: Span


@dataclass(frozen=True, slots=True)
class Selector:
    segments: tuple[Segment, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """`dp = 2`; `size` is None for `auto`."""

    name: Name
    size: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Mesh:
    axes: tuple[MeshAxis, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class AxisUse:
    """An axis in a rule; `yields` where written `tp?`."""

    name: Name
    yields: bool
    span: Span


@dataclass(frozen=True, slots=True)
class DimPath:
    """A dim in a rule: `hidden`, or by path `fc1.out`."""

    parts: tuple[Name, ...]
    span: Span

    @property
    def text(self) -> str:
        return ".".join(p.text for p in self.parts)


@dataclass(frozen=True, slots=True)
class Split:
    """`split dims over axes [uneven | sizes (..)]`."""

    dims: tuple[DimPath, ...]
    axes: tuple[AxisUse, ...]
    uneven: bool
    sizes: tuple[Expr, ...] | None
    span: Span


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One dim of a positional rule: a number of cuts, or axis names (`_` is none: an empty tuple)."""

    cuts: Number | None
    axes: tuple[Name, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ShardTuple:
    entries: tuple[ShardEntry, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Shard:
    """`shard ((2, 4), (4, 1)) -> ((8, 1))`."""

    inputs: tuple[ShardTuple, ...]
    outputs: tuple[ShardTuple, ...] | None
    span: Span


@dataclass(frozen=True, slots=True)
class Pin:
    """`[batch@dp, hidden@mp] +cp`."""

    type: TensorType
    span: Span


@dataclass(frozen=True, slots=True)
class StageEntry:
    stage: Expr
    selectors: tuple[Selector, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Stages:
    """`stages over pp { .. }` or `stages over pp balanced, virtual = 2`."""

    axis: Name
    balanced: bool
    virtual: Expr | None
    entries: tuple[StageEntry, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Microbatches:
    count: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Schedule:
    name: String
    span: Span


@dataclass(frozen=True, slots=True)
class Zero:
    level: Number
    axes: tuple[Name, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Bucket:
    """`bucket gradients 25MB`."""

    size: Number
    span: Span


@dataclass(frozen=True, slots=True)
class Recompute:
    span: Span


@dataclass(frozen=True, slots=True)
class Place:
    """`place on host` or `place on device`."""

    where: Name
    span: Span


@dataclass(frozen=True, slots=True)
class Strict:
    span: Span


@dataclass(frozen=True, slots=True)
class At:
    selectors: tuple[Selector, ...]
    rules: tuple[Rule, ...]
    span: Span


Rule = (
    Mesh | Split | Shard | Pin | Stages | Microbatches | Schedule | Zero | Bucket | Recompute | Place | Strict | At
)


@dataclass(frozen=True, slots=True)
class Strategy:
    name: Name
    rules: tuple[Rule, ...]
    doc: str
    span: Span


# --- training and hardware ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """`name = value`; `keyword` is "metric" for `metric name = value`; `at` holds the selectors of `optimizer at`."""

    keyword: str
    name: Name
    at: tuple[Selector, ...]
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Train:
    settings: tuple[Setting, ...]
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class Hardware:
    """`device h100 { .. }` or `cluster pod { .. }` (`keyword` tells which)."""

    keyword: str
    name: Name
    settings: tuple[Setting, ...]
    doc: str
    span: Span


# --- files -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """`use std.nn: Linear` (`path` "std.nn") or `use "./layers.shard": Block` (`file` true)."""

    path: str
    file: bool
    names: tuple[Name, ...]
    path_span: Span
    span: Span


Item = Use | DimDecl | Model | Function | Strategy | Train | Hardware


@dataclass(frozen=True, slots=True)
class Comment:
    """`text` with its `#`; `span` covers it."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class File:
    source: Source
    items: tuple[Item, ...]
    comments: tuple[Comment, ...]
