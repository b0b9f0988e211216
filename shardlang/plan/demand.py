"""The demands of rules on one operator, as the planner reads them. Made by resolve.py and its
parts; nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph
from shardlang.ops.rule import DimFactors
from shardlang.plan.plan import Pipeline, Recomputed
from shardlang.plan.time_axis import TimeSplit
from shardlang.sources.source import Span
from shardlang.types.layout import Layout, PartSizes
from shardlang.types.mesh import Mesh

BUCKET_BYTES = 25_000_000  # what `bucket gradients` is by default


@dataclass(frozen=True, slots=True)
class Demand:
    """`factors[f]`: the axes a rule gives factor f, or None where none speaks of it. `complete`:
    nothing else is split.

    span: the rule to show; spans: of several that have a part, all of them. through: axes along
    which a sum stays pending (`+mp` on a sum of sums). replicated: axes pinned as R (`^mp`).
    result: a layout that the first result is converted to at once (`shard .. -> ..`).
    chosen: "shard", "pin" or "split"."""

    factors: tuple[tuple[str, ...] | None, ...]
    span: Span = field(compare=False)
    complete: bool = False
    through: tuple[str, ...] = ()
    replicated: tuple[str, ...] = ()
    result: Layout | None = None
    mesh: int = 0
    chosen: str = "split"
    spans: tuple[Span, ...] = field(default=(), compare=False)

    def cut(self, dims: tuple[DimFactors, ...]) -> tuple[tuple[str, ...], ...]:
        """The axes that cut each dim of a tensor, by the factors of its dims."""
        return tuple(tuple(a for f in dim for a in self.factors[f] or ()) for dim in dims)


@dataclass(frozen=True, slots=True)
class ZeroRule:
    """`zero LEVEL over AXES`. keep: what level 3 gathers stays until the update."""

    level: int
    axes: tuple[str, ...]
    span: Span
    keep: bool = False


@dataclass(frozen=True, slots=True)
class AttendRule:
    """`attend evenly`, or `attend in a ring`."""

    ring: bool
    span: Span

    def __str__(self) -> str:
        return f"attend {'in a ring' if self.ring else 'evenly'}"


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """`chunks 8`."""

    count: int
    span: Span


@dataclass(frozen=True)
class ResolvedStrategy:
    """A strategy on a rank count: meshes and what its rules demand, all checked.

    `meshes`: without axes of size 1, so layouts never name one; empty where `ranks` is None.
    demands: op id -> demand. stored: value id (param, state, data) -> layout demanded of it by a
    pin.
    graph: the program's, with what microbatches and stages add; None where that is nothing. times:
    with microbatches, what each operator does in time; all else says nothing of that axis. zero:
    param value id -> rule. uneven: names of dims that may be cut unevenly, by dim identity
    (`id`-free: the Dim). sizes: those of a dim's parts that are given by hand. hosted: value id ->
    "host", those that are not on the device. pinned: value id of `stored` -> its rule."""

    name: str
    ranks: int | None
    meshes: tuple[Mesh, ...]
    demands: Mapping[int, Demand]
    stored: Mapping[int, Layout] = field(default_factory=dict)
    zero: Mapping[int, ZeroRule] = field(default_factory=dict)
    uneven: frozenset[object] = frozenset()
    bucket_bytes: int = BUCKET_BYTES
    strict: bool = False
    times: TimeSplit | None = None
    graph: Graph | None = None
    pipeline: Pipeline | None = None
    recompute: tuple[Recomputed, ...] = ()
    sizes: PartSizes = field(default_factory=dict)
    hosted: Mapping[int, str] = field(default_factory=dict)
    pinned: Mapping[int, Span] = field(default_factory=dict)
