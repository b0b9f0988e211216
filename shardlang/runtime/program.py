"""The values that an emitted program hands to `rt.main`: parameters, data sources, optimizers, and the program as a
whole.

Plain data with what follows from it for this rank (the block of a tensor that it holds); what is done with it is in
train.py.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shardlang.runtime.comm.mesh import Mesh
from shardlang.runtime.stages import Received, Schedule, Stage

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
}
Cut = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Block:
    """The part of a whole tensor that this rank holds: first global index and length, per dim."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.shape, strict=True))


def block(mesh: Mesh, shape: Sequence[int], cut: Cut, sizes: Mapping[int, Sequence[int]] | None) -> Block:
    """This rank's block of a tensor of `shape` cut over axes of `mesh`; torch.chunk's sizes where `sizes` says
    nothing.
    """
    offsets, lengths = [], []
    for dim, size in enumerate(shape):
        axes = cut[dim] if dim < len(cut) else ()
        group = mesh[tuple(axes)]
        given = sizes.get(dim) if sizes else None
        if group.size == 1:
            offsets.append(0)
            lengths.append(size)
        elif given is None:
            offsets.append(group.start(size))
            lengths.append(group.chunk(size))
        else:
            offsets.append(sum(given[: group.index]))
            lengths.append(given[group.index])
    return Block(tuple(offsets), tuple(lengths))


@dataclass(frozen=True)
class Parameter:
    """A trained tensor of whole `shape`: how it begins, how it is cut, over which axes its gradient is summed, ZeRO.

    sparse: its gradient is rows of it (sparse.py). place: "host" where it is in the host's memory, "" on the device.
    stages: those that use it, ascending; () where there are none, or all do. use: the type of the copy that `forward`
    works with, made at each use, where that is not its own. frozen: it gets no gradient and stays as it begins.
    """

    path: str
    shape: tuple[int, ...]
    init: tuple[Any, ...] = ("zeros",)
    cut: Cut = ()
    reduce: tuple[str, ...] = ()
    zero: int = 0
    zero_axes: tuple[str, ...] = ()
    sizes: Mapping[int, tuple[int, ...]] | None = None
    mesh: Mesh | None = None
    dtype: str = "f32"
    stages: tuple[int, ...] = ()
    use: str = ""
    sparse: bool = False
    place: str = ""
    frozen: bool = False

    def split_axes(self) -> tuple[str, ...]:
        return tuple(axis for axes in self.cut for axis in axes)


@dataclass(frozen=True)
class State:
    """A tensor that is saved but not trained. `stages` as of a parameter."""

    path: str
    shape: tuple[int, ...]
    init: tuple[Any, ...] = ("zeros",)
    cut: Cut = ()
    sizes: Mapping[int, tuple[int, ...]] | None = None
    mesh: Mesh | None = None
    dtype: str = "f32"
    stages: tuple[int, ...] = ()
    place: str = ""


@dataclass(frozen=True)
class Layer:
    """A layer without parameters and states, which functions are given all the same. `stages` as of a parameter."""

    path: str
    stages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Field:
    """A field of a data source, batch first. `bound`: whole numbers are from 0 and below it (the random source draws
    so), but those that all indexed uses ignore.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    cut: Cut = ()
    sizes: Mapping[int, tuple[int, ...]] | None = None
    mesh: Mesh | None = None
    bound: int | None = None
    ignored: tuple[int, ...] = ()
    place: str = ""


class Source:
    """A data source: its kind, the whole batch, the fields in the order of `forward`'s arguments, its own arguments."""

    def __init__(self, kind: str, *, batch: int, fields: Sequence[Field], **arguments: Any) -> None:
        self.kind, self.batch, self.fields = kind, batch, tuple(fields)
        self.arguments = arguments


class Optimizer:
    """An optimizer's kind, the paths of the parameters that it trains, its own arguments."""

    def __init__(self, kind: str, *, parameters: Sequence[str], **arguments: Any) -> None:
        self.kind, self.parameters, self.arguments = kind, tuple(parameters), arguments


@dataclass
class Program:
    """All of a run but where it runs. `base`, the folder that paths are relative to, `resume` and `host_storage`
    are set at launch.

    forward: one microbatch, from parameters and fields to the loss and the metrics. prepare: from its fields to numbers
    whose sums over the microbatches, by way of `prepared`, `forward` takes by name. conclude: from the sums of what
    `forward` returns third to further metrics. With a `pipeline`, the functions of its stages are in these places.
    """

    name: str
    strategy: str
    ranks: int
    mesh: Mesh
    parameters: Sequence[Parameter]
    data: Source
    optimizers: Sequence[Optimizer]
    forward: Callable[..., Sequence[Any]] | None = None
    stages: Sequence[Stage] = ()
    pipeline: Schedule | None = None
    prepare: Callable[..., Mapping[str, torch.Tensor]] | None = None
    prepared: Callable[..., Mapping[str, torch.Tensor]] | None = None
    conclude: Callable[..., Mapping[str, torch.Tensor]] | None = None
    groups: Sequence[tuple[str, ...]] = ()
    further_meshes: Sequence[tuple[Mesh, Sequence[tuple[str, ...]]]] = ()
    states: Sequence[State] = ()
    layers: Sequence[Layer] = ()
    seed: int = 0
    loss_pending: tuple[str, ...] = ()
    metrics_pending: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    eval: Source | None = None
    evaluate: Callable[..., Mapping[str, torch.Tensor]] | None = None
    finish: Callable[..., Mapping[str, Any]] | None = None
    eval_pending: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    eval_joined: tuple[str, ...] = ()
    epochs: int | None = None
    steps: int | None = None
    bucket_bytes: int = 25_000_000
    clip: float | None = None
    lr_schedule: tuple[str, Mapping[str, Any]] | None = None
    init: tuple[str, Mapping[str, Any]] | None = None
    checkpoint: tuple[str, Mapping[str, Any]] | None = None
    log: Mapping[str, int] | None = None
    precision: str = "f32"
    base: Path = Path(".")
    resume: bool = False
    host_storage: Path | None = None

    @property
    def microbatches(self) -> int:
        """The parts of a batch that a step goes through."""
        return self.mesh._microbatches

    @property
    def stages_here(self) -> tuple[int, ...]:
        """The stages that this rank runs."""
        if self.pipeline is None:
            return ()
        here = self.mesh[self.pipeline.axis].index
        return tuple(stage for stage, at in enumerate(self.pipeline.coordinates) if at == here)

    def coordinates(self, tensor: Parameter | State) -> tuple[int, ...]:
        """Where along the stages' axis a tensor is, ascending; where no stage uses it, with the first."""
        if self.pipeline is None:
            return (0,)
        return tuple(sorted({self.pipeline.coordinates[stage] for stage in tensor.stages or (0,)}))

    def holds(self, tensor: Parameter | State) -> bool:
        """Whether this rank has a part of a tensor."""
        return self.pipeline is None or self.mesh[self.pipeline.axis].index in self.coordinates(tensor)

    def keeper(self, tensor: Parameter | State) -> int:
        """The coordinate along the stages' axis that counts, saves and loads a tensor for all."""
        return self.coordinates(tensor)[0]

    def block(self, tensor: Parameter | State | Field) -> Block:
        """This rank's block of a parameter, state or (of the current microbatch) field."""
        return block(tensor.mesh or self.mesh, tensor.shape, tensor.cut, tensor.sizes)


def elements(shape: Sequence[int]) -> int:
    return math.prod(shape)


def dtype_of(program: Program, tensor: Parameter | State | Field | Received) -> torch.dtype:
    """Values of float32 become float64 in a run in float64; in bf16 and f16 runs, parameters stay float32."""
    return torch.float64 if program.precision == "f64" and tensor.dtype == "f32" else DTYPES[tensor.dtype]


@contextlib.contextmanager
def numbers_of(program: Program) -> Iterator[None]:
    """What torch makes of a number and whole numbers (`0.5 * n`, `1 / n`) has the floating type of the run."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if program.precision == "f64" else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
