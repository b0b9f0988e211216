"""The abstract syntax of a .shard file: frozen nodes, each with its span. Made by parse, read by
check and format.

Expressions have a module of their own, and are read from here too."""

from __future__ import annotations

from shardlang.records import dataclass
from shardlang.source import Source, Span
from shardlang.syntax.expressions import *
from shardlang.syntax.expressions import Node, node

# --- strategies: what is written `auto` is None, or () ------------------------


@node
class Segment(Node):
    """A part of a selector: `name` may hold `*`; `**`: any depth. `index`: None, "*", int..."""

    name: str
    index: str | int | tuple[int, int] | None


@node
class Selector(Node):
    segments: tuple[Segment, ...]


@node
class MeshAxis(Node):
    """`dp = 2`, `dp = auto`."""

    name: Name
    size: Expr | None


@node
class Mesh(Node):
    axes: tuple[MeshAxis, ...]


@node
class AxisUse(Node):
    """An axis in a rule; `yields` where written `tp?`."""

    name: Name
    yields: bool


@node
class DimPath(Node):
    """A dim in a rule: `hidden`, or by path `fc1.out`."""

    parts: tuple[Name, ...]

    @property
    def text(self) -> str:
        return ".".join(p.text for p in self.parts)


@node
class Split(Node):
    """`split dims over axes [uneven | sizes (..)]`; `split auto over axes`."""

    dims: tuple[DimPath, ...]
    axes: tuple[AxisUse, ...]
    uneven: bool
    sizes: tuple[Expr, ...] | None


@node
class ShardEntry(Node):
    """One dim of a positional rule: a number of cuts, or axis names (`_`: an empty tuple)."""

    cuts: Number | None
    axes: tuple[Name, ...]


@node
class ShardTuple(Node):
    entries: tuple[ShardEntry, ...]


@node
class Shard(Node):
    """`shard ((2, 4), (4, 1)) -> ((8, 1))`."""

    inputs: tuple[ShardTuple, ...]
    outputs: tuple[ShardTuple, ...] | None = None


@node
class Pin(Node):
    """`[batch@dp, hidden@mp] +cp`."""

    type: TensorType


@node
class StageEntry(Node):
    stage: Expr
    selectors: tuple[Selector, ...]


@node
class Stages(Node):
    """`stages over pp { .. }` or `stages over pp balanced, virtual = 2`; or `auto` for `balanced`,
    then `auto` is true."""

    axis: Name
    balanced: bool
    virtual: Expr | None
    entries: tuple[StageEntry, ...]
    auto: bool = False


@node
class Microbatches(Node):
    count: Expr | None


@node
class Schedule(Node):
    name: String | None


@node
class Zero(Node):
    """`zero 3 over dp`, or with a word: `zero 3 over dp, keep`."""

    level: Number | None
    axes: tuple[Name, ...]
    word: Name | None = None


@node
class Bucket(Node):
    """`bucket gradients 25MB`."""

    size: Number | None


@node
class Recompute(Node):
    """`recompute`, or with what: `recompute gathers`, `recompute all but products`."""

    what: tuple[Name, ...] | None


@node
class Attend(Node):
    """`attend evenly`, `attend in a ring`: how attention over a cut sequence is computed."""

    how: tuple[Name, ...]


@node
class Chunks(Node):
    """`chunks 8`: in how many chunks of rows a loss and its scores are computed."""

    count: Expr


@node
class Place(Node):
    """`place on host` or `place on device`; saved: `place saved on host`."""

    where: Name | None
    saved: bool = False


@node
class Strict(Node):
    """`strict`."""


@node
class At(Node):
    selectors: tuple[Selector, ...]
    rules: tuple[Rule, ...]


Narrow = Split | Shard | Pin | Zero | Recompute | Attend | Chunks | Place
Rule = Narrow | Mesh | Stages | Microbatches | Schedule | Bucket | Strict | At


@node
class Strategy(Node):
    name: Name
    rules: tuple[Rule, ...]


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


Item = Use | DimDecl | Model | Function | Strategy | Train | Hardware


@dataclass(frozen=True, eq=False)
class File:
    source: Source
    items: tuple[Item, ...]

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        return tuple(item for item in self.items if isinstance(item, Strategy))
