"""The plan: layouts for every value, conversions between them, parameters and their reductions.

Frozen; read by emit/ and reports.

Nothing here is per rank: a plan for 16,384 ranks has the size of one for 8."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import NamedTuple

from shardlang.check.program import CheckedProgram
from shardlang.facts.actions import Action, alone
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph
from shardlang.types.dim import BYTES
from shardlang.types.layout import Layout, PartSizes, local_shape
from shardlang.types.mesh import Mesh


class MoveKind(Enum):
    """The rows of the conversion table. collectives: what a row sends with, forward and backward;
    "" where it sends nothing."""

    I_TO_R = "identical_to_replicated", "", "all_reduce"
    P_TO_I = "all_reduce", "all_reduce", ""
    P_TO_R = "all_reduce_replicated", "all_reduce", "all_reduce"
    P_TO_S = "reduce_scatter", "reduce_scatter", "all_gather"
    S_TO_R = "all_gather_replicated", "all_gather", "reduce_scatter"
    S_TO_I = "all_gather", "all_gather", ""  # backward slices
    I_TO_S = "split", "", "all_gather"  # forward slices
    R_TO_S = "split_replicated", "", ""  # slices, and pads with zeros
    S_TO_S = "all_to_all", "all_to_all", "all_to_all"
    I_TO_P = "identical_to_pending", "", ""  # masks
    R_TO_P = "replicated_to_pending", "", ""  # masks both ways
    R_TO_I = "replicated_to_identical", "", ""  # masks backward
    S_TO_P = "split_to_pending", "", ""  # pads with zeros, and slices
    PERMUTE = "permute", "permute", "permute"  # sends blocks, and back
    VIEW = "view", "", ""  # the same bytes, named on another mesh

    collectives: tuple[str, str]

    def __new__(cls, name: str, *collectives: str) -> MoveKind:
        found = object.__new__(cls)
        found._value_ = name
        found.collectives = collectives  # type: ignore[assignment]
        return found


@dataclass(frozen=True, slots=True)
class Move:
    """One collective (or local step) between two layouts of one value.

    axes: the axes it runs over, in the order of the blocks (major first). dim: the tensor dim
    gathered, cut, or (all-to-all) split after the move; from_dim: for all-to-all, the dim gathered.
    PERMUTE, VIEW: `to` of the conversion says it all.
    forward_bytes, backward_bytes: bytes each rank sends (ring algorithms: all-reduce 2(n-1)/n,
    all-gather and reduce-scatter (n-1)/n of the whole, all-to-all (n-1)/n of the local buffer)."""

    kind: MoveKind
    axes: tuple[str, ...]
    dim: int = -1
    from_dim: int = -1
    forward_bytes: int = 0
    backward_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Conversion:
    """An edge of a value's tree: from conversion `parent` (or the value as produced: -1) by `move`
    to layout `to`.

    gradient: False where only metrics use it, or the value has no gradient (then no dual runs)."""

    id: int
    value: int
    parent: int
    move: Move
    to: Layout
    gradient: bool


@dataclass(frozen=True, slots=True)
class OperandUse:
    """Which form of a value an operator reads: the conversion, or -1 for the value as produced."""

    value: int
    conversion: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """An operator with its assignment: per factor the axes that split it, operand forms, result
    layouts.

    inside: (factor, axes, forward bytes, backward bytes) of each reduction of statistics within the
    operator. chosen: why this layout: "shard", "pin", "split" or "propagated"."""

    op: int
    factor_axes: tuple[tuple[str, ...], ...]
    operands: tuple[OperandUse, ...]
    results: tuple[Layout, ...]
    inside: tuple[tuple[int, tuple[str, ...], int, int], ...] = ()
    chosen: str = "propagated"
    mesh: int = 0


@dataclass(frozen=True, slots=True)
class ParamPlan:
    """A parameter: `stored` layout (S and I only, without ZeRO), the axes over which its gradient
    is reduced once a step (where its uses are R; deferred, bucketed), and ZeRO: level 0..3 over
    `zero_axes` (most minor cut of dim 0 in torch.chunk's sizes of the local shape). keep: level 3
    gathers it once a step. sparse: its gradient is rows, those of the batch. Its conversions other
    than I -> R are ordinary conversions of the plan."""

    value: int
    stored: Layout
    reduce_axes: tuple[str, ...]
    zero: int = 0
    zero_axes: tuple[str, ...] = ()
    sparse: bool = False
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Operators (ids) of one call of a layer whose saved activations are not kept: backward
    computes them again.

    call: all operators of the call. drops: what they make is not kept either, nor what is gathered
    for operators of the call alone. to_host: nothing is computed again; what they save waits in
    the host's memory."""

    ops: tuple[int, ...]
    call: tuple[int, ...]
    drops: bool = False
    to_host: bool = False


class Step(NamedTuple):
    """A line of the program, in order: an operator (index into `Plan.ops`) or a conversion."""

    kind: str  # "op" or "conversion"
    index: int  # type: ignore[assignment]  # no use is made of the method of tuples


@dataclass(frozen=True)
class Pipeline:
    """Stages over axis `axis` of `mesh`, the mesh of all ranks in the user's order (`Plan.meshes`
    lack that axis).

    coordinates: stage -> the coordinate along `axis` that runs it. op_stage: op id -> stage; an
    operator `transfer` is of the stage that receives. param_stages: parameter, state or data value
    id -> the stages that use it, ascending (a tied parameter has several). actions: per coordinate,
    in order. schedule: its name, or the file's."""

    axis: str
    mesh: Mesh
    coordinates: tuple[int, ...]
    op_stage: tuple[int, ...]
    param_stages: Mapping[int, tuple[int, ...]]
    schedule: str
    actions: tuple[tuple[Action, ...], ...]


@dataclass(frozen=True)
class Plan:
    """A program laid out on `ranks` ranks.

    produced: value id -> layout as produced (data: as loaded; params: as stored, with R where the
    gradient is reduced). steps: the training graph's order; metrics
    follow the loss. recompute: operators (ids) whose results are not kept but computed again in
    backward, a group for each call of a layer that a rule covers, within one stage.
    sizes: those of a dim's parts that are given by hand, wherever it is cut in as many; others are
    torch.chunk's. memory_of: value id -> "host" for what the memory of the host keeps and its CPU
    computes; all else is on the device. microbatches: above 1, every mesh ends in the time axis
    (`Axis.time`) of that size: what is cut over it is handled one part after another, and nothing
    is sent over it."""

    program: CheckedProgram
    graph: Graph
    strategy: str
    ranks: int
    meshes: tuple[Mesh, ...]
    produced: Mapping[int, Layout]
    ops: tuple[PlannedOp, ...]
    conversions: tuple[Conversion, ...]
    params: Mapping[int, ParamPlan]
    steps: tuple[Step, ...]
    bucket_bytes: int = 25_000_000
    strict: bool = False
    microbatches: int = 1
    pipeline: Pipeline | None = None
    recompute: tuple[Recomputed, ...] = ()
    sizes: PartSizes = field(default_factory=dict)
    memory_of: Mapping[int, str] = field(default_factory=dict)

    # A plan without stages is one stage, on one coordinate.

    def stage(self, op: int) -> int:
        """The stage of an operator (id)."""
        return self.pipeline.op_stage[op] if self.pipeline is not None else 0

    def stages_of(self, value: int) -> tuple[int, ...]:
        """The stages that use a parameter, state or field, ascending."""
        return self.pipeline.param_stages.get(value, ()) if self.pipeline is not None else (0,)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """Stage -> the coordinate along the axis of the stages that runs it."""
        return self.pipeline.coordinates if self.pipeline is not None else (0,)

    @property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """The actions of each coordinate, in order."""
        return self.pipeline.actions if self.pipeline is not None else (alone(self.microbatches),)

    def crosses(self, stage: int) -> bool:
        """Whether a stage receives from another rank what the stage before it makes."""
        return stage > 0 and self.coordinates[stage] != self.coordinates[stage - 1]

    def local_shape(self, value: int, layout: Layout) -> tuple[int, ...]:
        """The largest local shape, over the ranks, of a value laid out so, in one microbatch."""
        return local_shape(self.graph.values[value].type, layout, self.meshes[layout.mesh], self.sizes)

    def local_bytes(self, value: int, layout: Layout) -> int:
        """Bytes of a value that is laid out so on one rank, in one microbatch."""
        return math.prod(self.local_shape(value, layout)) * BYTES[self.graph.values[value].type.dtype]
