"""Which rank writes which part of each tensor to a checkpoint.

Every rank works it out for all, from the program alone, so nothing is exchanged. Ranks that hold
the same block share it by rows; a block that is too small for that is written by the one of them
that has the least to write so far."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from shardlang.checkpoints.index import SavedLayout
from shardlang.checkpoints.optimizers import EMA
from shardlang.runtime.comm.mesh import Group, RankMesh
from shardlang.runtime.program import Parameter, RunProgram, RunTensor, dtype_of, listed
from shardlang.runtime.state.checkpoints import NAMES
from shardlang.runtime.state.optimizers import slots

# Bytes of a share at least.
_LEAST = 4096


@dataclass
class CarriedStates:
    """The rest that a run has of the checkpoint that it goes on from, by path of a parameter.

    names, kinds, updates: of frozen ones whose state it keeps, the names of that, the optimizer,
    and the updates that the state has seen; tensors: this rank's part of it, by name. late: of
    those whose state began later than the run, the updates before."""

    names: dict[str, list[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)


class StateLayouts:
    """name -> the layout of what is saved under it. Tensors that are cut alike have one layout."""

    def __init__(self, program: RunProgram) -> None:
        self.program = program
        self.tensors: dict[str, SavedLayout] = {}
        self._made: dict[object, SavedLayout] = {}
        # By the ranks that share: bytes that each is to write.
        self._loads: dict[object, list[int]] = {}
        self.carried = CarriedStates()
        names = [slots(optimizer.kind, optimizer.arguments) for optimizer in program.optimizers]
        average = [EMA] if program.ema is not None else []
        # Of each parameter that is trained, the names of its state.
        self.kept = {path: [*names[by], *average] for path, by in program.trained_by.items()}
        for tensor in program.tensors:
            self.tensors[tensor.path] = self._layout(tensor)
            self.add(tensor, self.kept.get(tensor.path, []))

    def add(self, tensor: RunTensor, names: Sequence[str]) -> None:
        """Adds some state of a tensor to what is written."""
        self.tensors.update({f"{tensor.path}:{name}": self._layout(tensor) for name in names})

    def _layout(self, tensor: RunTensor) -> SavedLayout:
        mesh, program = tensor.mesh or self.program.mesh, self.program
        zero = zero_axes(program, tensor)
        cut = {dim: listed(axes) for dim, axes in tensor.cut.items()}
        apart = {*itertools.chain.from_iterable(cut.values()), *zero, program.stage_axis}
        sharing = tuple(axis for axis in mesh if axis not in apart)
        stage = program.coordinates(tensor)[0]
        count, owner = math.prod(mesh._sizes[axis] for axis in sharing), -1
        dtype = dtype_of(program, tensor)
        whole = math.prod(tensor.shape) * dtype.itemsize
        pieces = math.prod(mesh._sizes[axis] for axes in (*cut.values(), zero) for axis in axes)
        held = -(-whole // pieces)
        rows = tensor.shape[0] // pieces if tensor.shape else 0
        if count > 1 and (rows < 2 * count or held < _LEAST * count):
            loads = self._loads.setdefault((id(mesh), stage, sharing), [0] * count)
            owner = loads.index(min(loads))
            loads[owner] += held
        sizes = tuple((dim, tuple(each)) for dim, each in (tensor.sizes or {}).items())
        key = (id(mesh), tensor.shape, tuple(cut.items()), sizes, zero, stage, dtype, owner)
        if key not in self._made:
            lengths, ranks = _cut(tensor, mesh, cut, zero=zero, sharing=sharing, owner=owner)
            found = [mesh.rank_at(coordinates, program.stage_axis, stage) for coordinates in ranks]
            self._made[key] = SavedLayout(NAMES[dtype], tensor.shape, lengths, found)
        return self._made[key]


def zero_group(program: RunProgram, tensor: RunTensor) -> Group | None:
    """The group over which a parameter's rows are spread under ZeRO, if they are."""
    level, axes = tensor.zero if isinstance(tensor, Parameter) else (0, ())
    group = (tensor.mesh or program.mesh)[listed(axes)]
    return group if level and group.size > 1 else None


def zero_axes(program: RunProgram, tensor: RunTensor) -> tuple[str, ...]:
    """The axes of that group."""
    group = zero_group(program, tensor)
    return () if group is None else group.axes


def _cut(
    tensor: RunTensor, mesh: RankMesh, cut: Mapping[int, tuple[str, ...]], zero: Sequence[str], sharing: Sequence[str],
    owner: int,
) -> tuple[list[list[int]], list[dict[str, int]]]:  # fmt: skip
    """The lengths of a tensor's parts along each dim, and where on the mesh is who writes each.
    owner: the one of those that share who does; -1: each writes some rows."""
    fixed = _coordinates(mesh, sharing, owner) if owner >= 0 else {}
    lengths: list[list[int]] = []
    along: list[list[dict[str, int]]] = []
    for dim, size in enumerate(tensor.shape):
        given = (tensor.sizes or {}).get(dim)
        parts = [(_length(size, at, count, given), where) for at, count, where in _all(mesh, cut.get(dim, ()))]
        if dim == 0:
            parts = [
                (_length(length, at, count), {**where, **more})
                for length, where in parts for at, count, more in _all(mesh, zero)
            ]  # fmt: skip
            if owner < 0:
                parts = [
                    (length * (at + 1) // count - length * at // count, {**where, **more})
                    for length, where in parts for at, count, more in _all(mesh, sharing)
                ]  # fmt: skip
        lengths.append([length for length, _ in parts])
        along.append([where for _, where in parts])
    ways = ((fixed, *each) for each in itertools.product(*along))
    return lengths, [{axis: at for where in way for axis, at in where.items()} for way in ways]


def _all(mesh: RankMesh, axes: Sequence[str]) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Each member of a group over axes: its index, of how many, its coordinates."""
    count = math.prod(mesh._sizes[axis] for axis in axes)
    for at in range(count):
        yield at, count, _coordinates(mesh, axes, at)


def _coordinates(mesh: RankMesh, axes: Sequence[str], at: int) -> dict[str, int]:
    """The coordinates of member `at` along axes, the first the major."""
    found = {}
    for axis in reversed(axes):
        at, found[axis] = divmod(at, mesh._sizes[axis])
    return found


def _length(size: int, at: int, count: int, given: Sequence[int] | None = None) -> int:
    """The length of part `at` of a dim: as given, else in torch.chunk's sizes."""
    if count == 1:
        return size
    each = -(-size // count)
    return given[at] if given is not None else max(0, min(each, size - at * each))
