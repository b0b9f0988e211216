"""The values that an emitted program hands to `rt.main`: parameters, data sources, optimizers,
settings, and the program as a whole.

Plain data with what follows from it for this rank (the block of a tensor that it holds); what is
done with it is in train.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import add
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from shardlang.checkpoints.parts import by_rows
from shardlang.extensions import loaded
from shardlang.facts import dtypes
from shardlang.launch.log_targets import LogTarget
from shardlang.paths.patterns import covered, expanded
from shardlang.runtime.comm.mesh import RankMesh
from shardlang.runtime.speed import Work
from shardlang.runtime.stages import Order, Received, Schedule, Stage
from shardlang.runtime.weight_names import Names
from shardlang.runtime.words import Text, Words

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, facts.torch) for name, facts in dtypes.DTYPES.items()}
# An axis of a mesh, or several, the major first.
Axes = str | tuple[str, ...]
# Dim -> the axes that cut it.
Cut = Mapping[int, Axes]


def listed(axes: Axes) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else axes


def split_axes(cut: Cut) -> tuple[str, ...]:
    return tuple(axis for axes in cut.values() for axis in listed(axes))


@dataclass(frozen=True)
class Extent:
    """The part of a whole tensor that this rank holds: first global index and length, per dim."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.shape, strict=True))

    def by_rows(self, most: int) -> Iterator[Extent]:
        """The block in pieces of whole rows, with at most so many elements each (or one row)."""
        for offsets, lengths in by_rows(self.shape, most):
            yield Extent(tuple(map(add, self.offsets, offsets)), lengths)


def block(mesh: RankMesh, shape: Sequence[int], cut: Cut, sizes: Mapping[int, Sequence[int]] | None) -> Extent:
    """This rank's block of a tensor of `shape` cut over axes of `mesh`; torch.chunk's sizes where
    `sizes` says nothing."""
    offsets, lengths = [], []
    for dim, size in enumerate(shape):
        group = mesh[listed(cut.get(dim, ()))]
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
    return Extent(tuple(offsets), tuple(lengths))


@dataclass(frozen=True)
class RunTensor:
    """A tensor that is saved: its whole `shape`, how it begins, how it is cut.

    place: "host" where it is in the host's memory, "" on the device."""

    path: str
    shape: tuple[int, ...]
    init: str | tuple[Any, ...] = "zeros"
    cut: Cut = field(default_factory=dict)
    sizes: Mapping[int, tuple[int, ...]] | None = None
    mesh: RankMesh | None = None
    dtype: str = "f32"
    place: str = ""


@dataclass(frozen=True)
class Parameter(RunTensor):
    """A trained tensor. reduce: the axes over ranks that its gradient is summed over. zero: level
    and axes of ZeRO. keep: level 3 gathers it once a step.

    once: its gradient is whole in each microbatch, and counts in the first alone. use: the type of
    the copy that `forward` works with (copies.py), where that is not its own. sparse: its gradient
    is rows of it (sparse.py). frozen: it gets no gradient and stays as it begins."""

    reduce: Axes = ()
    zero: tuple[int, Axes] = (0, ())
    keep: bool = False
    once: bool = False
    use: str = ""
    sparse: bool = False
    frozen: bool = False


class State(RunTensor):
    """A tensor that is saved but not trained."""


AnyDeclared = TypeVar("AnyDeclared", bound=RunTensor)


def each(layers: str, *tensors: AnyDeclared) -> list[AnyDeclared]:
    """The tensors of every layer of `layers` (`blocks[0..6]`), each under its whole path."""
    return [replace(tensor, path=f"{layer}.{tensor.path}") for layer in expanded(layers) for tensor in tensors]


@dataclass(frozen=True)
class SourceField:
    """A field of a data source, batch first. `bound`: whole numbers are from 0 and below it (the
    random source draws so), but those that all indexed uses ignore. `words`: of which they
    are, or how a text becomes them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    cut: Cut = field(default_factory=dict)
    sizes: Mapping[int, tuple[int, ...]] | None = None
    mesh: RankMesh | None = None
    bound: int | None = None
    ignored: tuple[int, ...] = ()
    place: str = ""
    words: Words | Text | None = None


class BatchSource:
    """A data source: kind, whole batch, fields in the order of `forward`'s arguments, arguments;
    and once it has been read, its files, and for each field that reads words a text of its
    words."""

    def __init__(self, kind: str, *, batch: int, fields: Sequence[SourceField], **arguments: Any) -> None:
        self.kind, self.batch, self.fields = kind, batch, tuple(fields)
        self.arguments = arguments
        self.files: tuple[Path, ...] = ()
        self.categories: Mapping[str, str] = {}


class Optimizer:
    """An optimizer's kind, the paths (patterns.py) of what it trains, its own arguments. Without
    `at` it trains what no other does."""

    def __init__(self, kind: str, *, at: Sequence[str] = (), **arguments: Any) -> None:
        self.kind, self.at, self.arguments = kind, tuple(at), arguments


@dataclass(frozen=True)
class Linear:
    """Learning rates: up to the optimizer's at step `warmup`, then down to `min` at the last, in a
    line."""

    warmup: int = 0
    min: float = 0.0


@dataclass(frozen=True)
class WarmupCosine(Linear):
    """The same, with half a cosine down to `min`."""


@dataclass(frozen=True)
class OwnSchedule:
    """Learning rates by a function of the user's: `call(step, total, lr, **settings)`."""

    call: loaded.OwnFunction
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint after every so many steps, and after the last, in folder `to`; the latest `keep`
    stay, 0: all."""

    every: int
    keep: int
    to: str


@dataclass(frozen=True)
class Evaluation:
    """An evaluation after every so many steps, by default after each epoch, and after the last. The
    best is that with the lowest or highest figure `best`; after `patience` evaluations in a row
    that are not better the run ends. ema: it is of the average of the weights."""

    every: int | None = None
    best: str | None = None
    lowest: bool = True
    patience: int | None = None
    ema: bool = False


@dataclass(frozen=True)
class Safetensors:
    """A file of weights that a run starts from; `names` where it names them in another way."""

    path: str
    names: Names | None = None


@dataclass(frozen=True)
class Profiled:
    """Steps to write a trace of, the folder that it goes to, the folder of the emitted files."""

    steps: range
    to: Path
    emitted: Path


class OwnFiles(Protocol):
    """Python files, path -> hash."""

    files: Mapping[str, str]


@dataclass
class RunProgram:
    """All of a run but where it runs. `base`, the folder that paths are relative to, `resume`
    (`resume_anyway`: with other data), `overwrite` (begins anew where an earlier run left
    checkpoints), `host_storage`, `profile`, `targets` of its events, the `hash` of the emitted
    files, `where` it runs (in words) and `log_dir` are set at launch.

    forward: one microbatch, from parameters and fields to the loss and the metrics.
    before_microbatch: from its fields to numbers whose sums over the microbatches, by way of
    `before_step`, `forward` takes by name. conclude: from the sums of what `forward` returns third
    to further metrics. late: from figures of a step, `late_from`, to metrics that wait for these;
    figures with a `:` in their name are not shown. predicted: what an evaluation keeps of each
    example. gathers: what ZeRO 3 gathers together. With a `pipeline`, its stages are in these
    places. drops: `rt.recompute` drops results. to_host: there is `rt.saved_on_host`. own: the
    files of the user's own operators."""

    name: str
    strategy: str
    ranks: int
    mesh: RankMesh
    parameters: Sequence[Parameter]
    data: BatchSource
    optimizers: Sequence[Optimizer]
    forward: Callable[..., Sequence[Any]] | None = None
    gathers: Order = field(default_factory=Order)
    stages: Sequence[Stage] = ()
    pipeline: Schedule | None = None
    drops: bool = False
    to_host: bool = False
    own: OwnFiles | None = None
    before_microbatch: Callable[..., Mapping[str, torch.Tensor]] | None = None
    before_step: Callable[..., Mapping[str, torch.Tensor]] | None = None
    conclude: Callable[..., Mapping[str, torch.Tensor]] | None = None
    groups: Sequence[tuple[str, ...]] = ()
    further_meshes: Sequence[tuple[RankMesh, Sequence[tuple[str, ...]]]] = ()
    states: Sequence[State] = ()
    seed: int = 0
    loss_pending: tuple[str, ...] = ()
    metrics_pending: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    eval: BatchSource | None = None
    evaluate: Callable[..., Mapping[str, torch.Tensor]] | None = None
    finish: Callable[..., Mapping[str, Any]] | None = None
    late: Callable[..., Mapping[str, Any]] | None = None
    late_from: Sequence[str] = ()
    eval_pending: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    eval_joined: tuple[str, ...] = ()
    predicted: Sequence[SourceField] = ()
    epochs: int | None = None
    steps: int | None = None
    bucket_bytes: int = 25_000_000
    clip: float | None = None
    not_finite: str = "stop"
    ema: float | None = None
    lr_schedule: Linear | OwnSchedule | None = None
    init: Safetensors | None = None
    checkpoint: Checkpoint | None = None
    evaluation: Evaluation = field(default_factory=Evaluation)
    log: Mapping[str, int] | None = None
    precision: str = "f32"
    compile: str = "none"
    work: Work = field(default_factory=Work)
    base: Path = Path(".")
    resume: bool = False
    resume_anyway: bool = False
    overwrite: bool = False
    host_storage: Path | None = None
    profile: Profiled | None = None
    targets: Sequence[LogTarget] = ()
    hash: str = ""
    where: str = ""
    log_dir: Path | None = None

    @property
    def microbatches(self) -> int:
        """The parts of a batch that a step goes through."""
        return self.mesh._microbatches

    @property
    def calls(self) -> bool:
        """Whether it calls functions of the user's own whose results all ranks compare."""
        sources = [source for source in (self.data, self.eval) if source is not None]
        return isinstance(self.lr_schedule, OwnSchedule) or any("call" in each.arguments for each in sources)

    @property
    def tensors(self) -> list[RunTensor]:
        """Parameters and states."""
        return [*self.parameters, *self.states]

    @property
    def asks(self) -> bool:
        """Whether callbacks of the user's may ask the run for something."""
        return any(target.kind == "python" for target in self.targets)

    @property
    def stage_axis(self) -> str:
        """The axis of the pipeline's stages; "" without."""
        return self.pipeline.axis if self.pipeline is not None else ""

    @property
    def stages_here(self) -> tuple[int, ...]:
        """The stages that this rank runs."""
        coordinates = self.pipeline.coordinates if self.pipeline is not None else ()
        return tuple(stage for stage, at in enumerate(coordinates) if at == self.mesh[self.stage_axis].index)

    @cached_property
    def stages_of(self) -> Mapping[str, tuple[int, ...]]:
        """Path of a tensor -> the stages that use it, ascending."""
        paths = [tensor.path for tensor in self.tensors]
        used = [covered(stage.parameters, paths) for stage in self.stages]
        return {path: tuple(at for at, mine in enumerate(used) if path in mine) for path in paths}

    @cached_property
    def trained_by(self) -> Mapping[str, int]:
        """Path of a parameter -> the number of the optimizer that trains it."""
        paths = [tensor.path for tensor in self.parameters if not tensor.frozen]
        by = {path: at for at, optimizer in enumerate(self.optimizers) for path in paths if not optimizer.at}
        for at, optimizer in enumerate(self.optimizers):
            by.update(dict.fromkeys(covered(optimizer.at, paths), at))
        return {path: by[path] for path in paths if path in by}

    def coordinates(self, tensor: RunTensor) -> tuple[int, ...]:
        """Where along the stages' axis a tensor is, ascending; an unused one is with the first."""
        if self.pipeline is None:
            return (0,)
        return tuple(sorted({self.pipeline.coordinates[stage] for stage in self.stages_of[tensor.path] or (0,)}))

    def holds(self, tensor: RunTensor) -> bool:
        """Whether this rank has a part of a tensor."""
        return self.pipeline is None or self.mesh[self.pipeline.axis].index in self.coordinates(tensor)

    def keeps(self, tensor: RunTensor) -> bool:
        """Whether this rank's stage is the one that counts, saves and loads a tensor for all: the
        first that has it."""
        return self.pipeline is None or self.mesh[self.pipeline.axis].index == self.coordinates(tensor)[0]

    def block(self, tensor: RunTensor | SourceField) -> Extent:
        """This rank's block of a parameter, state or (of the current microbatch) field."""
        return block(tensor.mesh or self.mesh, tensor.shape, tensor.cut, tensor.sizes)


def load_own(program: RunProgram) -> list[str]:
    """Loads the Python files that the program names, and says of each which text it is. RunError
    SH619."""
    if program.own is None:
        return []
    loaded.load(program.base, program.own.files)
    return [f"runs {name}, sha256 {digest}" for name, digest in program.own.files.items()]


def dtype_of(program: RunProgram, tensor: RunTensor | SourceField | Received) -> torch.dtype:
    """float32 values become float64 in a run in float64; in bf16 runs parameters stay float32."""
    return torch.float64 if program.precision == "f64" and tensor.dtype == "f32" else DTYPES[tensor.dtype]


@contextlib.contextmanager
def numbers_of(program: RunProgram) -> Iterator[None]:
    """Sets the floating type of `0.5 * n` and `1 / n` for whole n to that of the run."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if program.precision == "f64" else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
