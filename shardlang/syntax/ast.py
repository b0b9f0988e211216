"""The abstract syntax of a .shard file: frozen nodes, each with its span. Made by parse, read by
check and format.

Here are models, training, hardware and files; expressions and strategies have modules of their own
and are read from here too."""

from __future__ import annotations

from shardlang.records import dataclass
from shardlang.source import Source, Span
from shardlang.syntax.expressions import *
from shardlang.syntax.expressions import Node, node
from shardlang.syntax.strategies import *


@node
class Formal(Node):
    """`name: kind = default`; kind is the Name of `dim int float bool str`, or a TensorType."""

    name: Name
    kind: Name | TensorType
    default: Expr | None = None


@node
class DimEntry(Node):
    name: Name
    value: Expr


@node
class DimDecl(Node):
    """`dim a = 1, b = 2 * a`, at file level or in a model."""

    entries: tuple[DimEntry, ...]


@node
class Layer(Node):
    """`layer name[count] = value`; `count` is None for a single layer. `value` is a Call."""

    name: Name
    count: Expr | None
    value: Expr


@node
class Tensor(Node):
    """`param name: type = init` or `state name: type = init` (`keyword` tells which)."""

    keyword: str
    name: Name
    type: TensorType
    init: Expr


@node
class Assign(Node):
    name: Name
    value: Expr


@node
class Return(Node):
    value: Expr


@node
class Forward(Node):
    """`forward(x: [..]) -> [..] { body }`."""

    formals: tuple[Formal, ...]
    result: TensorType | None
    body: tuple[Assign | Return, ...]


@node
class If(Node):
    """Members under a static condition."""

    condition: Expr
    then: tuple[Member, ...]
    otherwise: tuple[Member, ...]


Member = DimDecl | Layer | Tensor | Forward | If


@node
class Model(Node):
    name: Name
    formals: tuple[Formal, ...]
    members: tuple[Member, ...]


@node
class Function(Node):
    """`fn name(x: [..], p: float = 0.1) -> [..] { body }`: a model without members."""

    name: Name
    formals: tuple[Formal, ...]
    result: TensorType | None
    body: tuple[Assign | Return, ...]


# --- training and hardware ---------------------------------------------------


@node
class Setting(Node):
    """`name = value`; `keyword`: "metric" for a metric; `at`: the selectors of an optimizer."""

    keyword: str
    name: Name
    at: tuple[Selector, ...]
    value: Expr


@node
class Train(Node):
    settings: tuple[Setting, ...]


@node
class Hardware(Node):
    """`device h100 { .. }` or `cluster pod { .. }` (`keyword` tells which)."""

    keyword: str
    name: Name
    settings: tuple[Setting, ...]


# --- files -------------------------------------------------------------------


@node
class Use(Node):
    """`use std.nn: Linear` (`path` "std.nn") or `use "./layers.shard": Block` (`file` true)."""

    path: str
    file: bool
    names: tuple[Name, ...]
    path_span: Span


Item = Use | DimDecl | Model | Function | Strategy | Train | Hardware


@dataclass(frozen=True, eq=False)
class File:
    source: Source
    items: tuple[Item, ...]

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        return tuple(item for item in self.items if isinstance(item, Strategy))
