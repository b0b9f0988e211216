"""The abstract syntax of a .shard file: frozen nodes, each with its span. Made by parse, read by
check and format.

Here are models, training, hardware and files; expressions and strategies have modules of their own
and are read from here too. Comments are not nodes: `File.comments` keeps them by span, for the
formatter."""

from __future__ import annotations

from shardlang.source import Source, Span
from shardlang.syntax.expressions import *
from shardlang.syntax.node import Node, node
from shardlang.syntax.strategies import *

# --- models ------------------------------------------------------------------


@node
class Formal(Node):
    """`name: kind = default`; kind is the Name of `dim int float bool str`, or a TensorType."""

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


# --- training and hardware ---------------------------------------------------


@node
class Setting(Node):
    """`name = value`; `keyword`: "metric" for a metric; `at`: the selectors of an optimizer."""

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

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        return tuple(item for item in self.items if isinstance(item, Strategy))
