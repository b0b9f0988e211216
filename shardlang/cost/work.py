"""The work of a step of training, as values: what each stage computes, reads, writes and sends.

Nothing here is per rank, and nothing is in seconds. Sizes are those of the rank that has most.
Equal work is one item with a count: what differs only in which layer of an array it is of is equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from shardlang.facts.actions import Action, BackwardCut
from shardlang.frozen.records import dataclass
from shardlang.types.dim import BYTES
from shardlang.types.mesh import Mesh

# What a pass does: forward, forward once more within backward, gradients of what operators read,
# gradients of parameters.
FORWARD, AGAIN, INPUTS, WEIGHTS = "forward", "again", "inputs", "weights"


@dataclass(frozen=True, slots=True)
class Place:
    """Where work comes from. path: of the operator or the value, with `[*]` for the layer of an
    array; layer: that of the outermost array in it (`model.blocks[*]`), or the layer around it.
    operator: its name, or that of a conversion; line: of the source, 0 for none."""

    layer: str
    path: str
    operator: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products of [m, k] with [k, n]."""

    place: Place
    phase: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Read and written, each operand once."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) * BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of `heads` (batch x heads), or its backward, as phase says. width: the mean of
    that of queries and that of values. causal: later keys are masked. cut: queries are a part of
    the sequence. fused: by one kernel. pairs: of a query and a key it sees, for each head, on the
    rank that has most. flops: of a rank in the mean, where masked pairs do not count."""

    place: Place
    phase: str
    dtype: str
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: float
    causal: bool
    cut: bool
    fused: bool
    pairs: int
    flops: int


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """Work that memory bounds: bytes read and written, in so many kernels; elements: of the largest
    tensor in it."""

    place: Place
    phase: str
    dtype: str
    read: int
    written: int
    elements: int
    kernels: int = 1


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective in line. bytes: that each rank sends (`Move`). beside: what can be computed
    meanwhile, such as the gradients of weights; these are items of their own too."""

    place: Place
    phase: str
    dtype: str
    kind: str
    mesh: int
    axes: tuple[str, ...]
    bytes: float
    beside: tuple[Product | Attention, ...] = ()


@dataclass(frozen=True, slots=True)
class Gather:
    """Parameters of one unit that ZeRO cuts come whole. bytes: that each rank sends; whole: of what
    is there then. keep: once a step. unit: the paths of all parameters that come at one time with
    them; what has just been used and is there does not come again."""

    place: Place
    dtype: str
    mesh: int
    axes: tuple[str, ...]
    bytes: int
    whole: int
    keep: bool = False
    unit: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reduction:
    """The sum of one parameter's gradient over ranks. parts: the collectives, each with its axes
    and the bytes that a rank sends in it. size: bytes of the gradient, which fill a bucket; each:
    in every microbatch, else in the last; group: only what is alike in it shares a bucket."""

    place: Place
    dtype: str
    mesh: int
    parts: tuple[tuple[str, tuple[str, ...], int], ...]
    size: int
    each: bool = False
    group: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Between host and device (`to`). beside: it travels beside what its layer computes."""

    place: Place
    phase: str
    to: str
    bytes: int
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """Work on elements of parameters once a step: the optimizer's kind, or "norm"; tensors:
    how many they are."""

    kind: str
    dtype: str
    elements: int
    tensors: int


Item = Product | Attention | MemoryBound | Collective | Copy
# An item -> how often it is done.
Items = Mapping[Item, int]


@dataclass(frozen=True)
class Segment:
    """A run of items in a pass, in the order of their first: those of one layer. times: how many
    layers that are alike follow each other here.

    gathers: what ZeRO 3 brings for it. reductions: the parameters whose gradients it makes whole,
    in order."""

    layer: str
    items: Items
    times: int = 1
    gathers: tuple[Gather, ...] = ()
    reductions: tuple[Reduction, ...] = ()


# Segments in order.
Pass = Sequence[Segment]


@dataclass(frozen=True)
class StageWork:
    """A microbatch on a stage. forward: with items of FORWARD; backward: with items of AGAIN,
    INPUTS and WEIGHTS, from the last layer to the first. received: bytes that it gets from the
    stage before, and gives back to it as gradients (none where that is on the same rank). cut: its
    backward, where a schedule cuts it."""

    forward: Pass
    backward: Pass
    received: tuple[int, int] = (0, 0)
    cut: BackwardCut = BackwardCut.CUT


@dataclass(frozen=True)
class Coordinate:
    """The work once a step, beside actions, of ranks at one coordinate along the axis of stages.
    ahead: before the first; after: when all gradients are summed, such as the norm for `clip`;
    updates; gathers: of ZeRO 1 and 2, of what has been updated."""

    stages: tuple[int, ...]
    ahead: Items = field(default_factory=dict)
    after: Items = field(default_factory=dict)
    updates: tuple[Update, ...] = ()
    gathers: tuple[Gather, ...] = ()


@dataclass(frozen=True)
class Workload:
    """meshes: of all ranks, as items name their axes. stages: stages that are alike are one object.
    actions: of each coordinate, in order, by the schedule of that name. axis: that of the stages.
    flops: of the model, on all ranks together; hidden: those of pairs that a causal mask hides,
    which are not in it."""

    ranks: int
    meshes: tuple[Mesh, ...]
    microbatches: int
    stages: tuple[StageWork, ...]
    coordinates: tuple[Coordinate, ...]
    actions: tuple[tuple[Action, ...], ...]
    axis: str = ""
    schedule: str = ""
    bucket_bytes: int = 25_000_000
    flops: int = 0
    hidden: int = 0
    tokens: int = 0

    @property
    def zero3(self) -> bool:
        """Whether parameters are gathered for passes."""
        return any(segment.gathers for stage in self.stages for segment in stage.forward)
