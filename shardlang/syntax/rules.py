"""Nodes of strategies and their rules. See `syntax.ast`. The word `auto` is None in them, or ()."""

from __future__ import annotations

from shardlang.syntax.expressions import Expr, Name, Node, Number, String, TensorType, node


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
