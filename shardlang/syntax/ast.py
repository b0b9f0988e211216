"""The abstract syntax of a .shard file: frozen nodes, each with its span. Made by parse, read by
check and format.

Expressions and strategies have modules of their own, and are read from here too."""

from __future__ import annotations

from shardlang.frozen.records import dataclass
from shardlang.sources.source import Source, Span
from shardlang.syntax.expressions import *
from shardlang.syntax.expressions import Node, node
from shardlang.syntax.rules import *

# --- models ------------------------------------------------------------------


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
    """`a = value`, or `a, b = value`: `others` are the names after the first."""

    name: Name
    value: Expr
    others: tuple[Name, ...] = ()

    @property
    def names(self) -> tuple[Name, ...]:
        return (self.name, *self.others)


@node
class Return(Node):
    values: tuple[Expr, ...]


@node
class Forward(Node):
    """`forward(x: [..]) -> [..], [..] { body }`."""

    formals: tuple[Formal, ...]
    results: tuple[TensorType, ...]
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
    results: tuple[TensorType, ...]
    body: tuple[Assign | Return, ...]


# --- operators of the user's own ---------------------------------------------


@node
class Whole(Node):
    """`whole time, taps`: dims that may not be split."""

    dims: tuple[Name, ...]


@node
class Inside(Node):
    """`inside d`: dims over which the function itself sums, where they are split."""

    dims: tuple[Name, ...]


@node
class Reduces(Node):
    """`reduces 2, 1`: how many sums it makes over the `inside` dims, forward and backward."""

    forward: Expr
    backward: Expr


@node
class Linear(Node):
    """`linear x`, or `linear (x, y)`: operands that may be pending, together."""

    operands: tuple[Name, ...]


@node
class Flops(Node):
    count: Expr


@node
class Keeps(Node):
    """`keeps x, w`: what backward reads; `result` is the result."""

    names: tuple[Name, ...]


@node
class Python(Node):
    """`python "my_ops.py": causal_conv`."""

    file: String
    name: Name


OperatorFact = DimDecl | Whole | Inside | Reduces | Linear | Flops | Keeps | Python


@node
class Operator(Node):
    """`operator name(x: [..], stride: int = 1) -> [..] { facts }`."""

    name: Name
    formals: tuple[Formal, ...]
    result: TensorType
    facts: tuple[OperatorFact, ...]


@node
class Needs(Node):
    """`needs whole matrices`: the words."""

    words: tuple[Name, ...]


@node
class Remembers(Node):
    """`state momentum like parameter`."""

    name: Name
    like: Name


OwnFact = Python | Needs | Remembers


@node
class OwnSource(Node):
    """`source name(path: str) -> (x: [batch, d]) { facts }`."""

    name: Name
    formals: tuple[Formal, ...]
    fields: tuple[Field, ...]
    facts: tuple[OwnFact, ...]


@node
class OwnSchedule(Node):
    """`schedule name(warmup: int) { facts }`."""

    name: Name
    formals: tuple[Formal, ...]
    facts: tuple[OwnFact, ...]


@node
class OwnOptimizer(Node):
    """`optimizer name(lr: float) { facts }`."""

    name: Name
    formals: tuple[Formal, ...]
    facts: tuple[OwnFact, ...]


# --- training and hardware ---------------------------------------------------


@node
class Setting(Node):
    """`name = value`; `keyword`: "metric" for a metric, "freeze" for `name at SELECTORS`, whose
    value is its name; `at`: the selectors of an optimizer, or of what is frozen; `others`: the
    names after the first in `a, b = value`."""

    keyword: str
    name: Name
    at: tuple[Selector, ...]
    value: Expr
    others: tuple[Name, ...] = ()

    @property
    def names(self) -> tuple[Name, ...]:
        return (self.name, *self.others)


@node
class Train(Node):
    settings: tuple[Setting, ...]


@node
class Hardware(Node):
    """`device h100 { .. }`, `cluster pod { .. }`, or `level hall { .. }` in a cluster (`keyword`
    tells which)."""

    keyword: str
    name: Name
    settings: tuple[Setting, ...]
    levels: tuple[Hardware, ...] = ()


# --- files -------------------------------------------------------------------


@node
class Use(Node):
    """`use std.nn: Linear` (`path` "std.nn") or `use "./layers.shard": Block` (`file` true)."""

    path: str
    file: bool
    names: tuple[Name, ...]
    path_span: Span


Own = OwnSource | OwnSchedule | OwnOptimizer
Item = Use | DimDecl | Model | Function | Operator | Own | Strategy | Train | Hardware


@dataclass(frozen=True, eq=False)
class File:
    """`lost`: the text that mistakes of syntax keep out of the items."""

    source: Source
    items: tuple[Item, ...]
    lost: tuple[Span, ...] = ()

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        return tuple(item for item in self.items if isinstance(item, Strategy))
