"""Which ranks of a mesh belong together, which block of a value each holds under a layout, and
where the places of a plan's meshes are in a run.

A plan's meshes are those of one stage, with the microbatches as their last axis; all stages share
them. So one place stands for a rank of each stage, at a microbatch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from shardlang.plan.plan import Plan
from shardlang.plan.reads import makers
from shardlang.types.dim import TensorType
from shardlang.types.layout import Layout, PartSizes, listed_sizes
from shardlang.types.mesh import Mesh

Block = tuple[tuple[int, int], ...]
SizesOfDims = Sequence[tuple[int, ...] | None]


@lru_cache(maxsize=4096)
def groups_of(mesh: Mesh, axes: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The ranks that differ only along `axes`, group by group, members by index over `axes`."""
    return mesh.groups(axes)


def others(mesh: Mesh, axes: Sequence[str]) -> tuple[str, ...]:
    """The axes of the mesh that are not among `axes`."""
    return tuple(a.name for a in mesh.axes if a.name not in axes)


def block_of(mesh: Mesh, rank: int, shape: Sequence[int], layout: Layout, part_sizes: SizesOfDims = ()) -> Block:
    """(start, size) along each dim of a rank's part of a value of `shape`; part_sizes: per dim."""
    part_sizes = part_sizes or (None,) * len(shape)
    dims = zip(shape, layout.dims, part_sizes, strict=True)
    return tuple(parts_of(mesh, size, axes, sizes)[rank] for size, axes, sizes in dims)


@lru_cache(maxsize=4096)
def parts_of(mesh: Mesh, size: int, axes: tuple[str, ...], part_sizes: tuple[int, ...] | None = None) -> Block:
    """Per rank the (start, size) of its part of `size` things cut over `axes`: in the sizes listed
    for as many parts, else in torch.chunk's."""
    sizes = listed_sizes(size, mesh.degree(axes), part_sizes)
    starts = list(itertools.accumulate(sizes, initial=0))
    indices = [mesh.index(rank, axes) for rank in range(mesh.size)]
    return tuple((starts[i], sizes[i]) for i in indices)


def sizes_of_dims(type: TensorType, part_sizes: PartSizes) -> tuple[tuple[int, ...] | None, ...]:
    """Per dim of a value its listed part sizes; () without any."""
    return tuple(part_sizes.get(term[0]) if len(term) == 1 else None for term in type.dims) if part_sizes else ()


def cut_out(whole: Tensor, block: Block) -> Tensor:
    """The block of a whole tensor, a view."""
    for dim, (start, size) in enumerate(block):
        whole = whole.narrow(dim, start, size)
    return whole


@dataclass(frozen=True)
class MeshPositions:
    """The positions on the meshes of a plan."""

    plan: Plan

    @property
    def positions(self) -> range:
        """Numbers of all positions of a stage: a rank and a microbatch each."""
        return range(self.plan.ranks // self._stages * self.plan.microbatches)

    @property
    def _stages(self) -> int:
        """Coordinates along the axis of the stages."""
        return len(self.plan.actions)

    def microbatch(self, place: int) -> int:
        return place % self.plan.microbatches

    def rank(self, place: int, stage: int) -> int:
        """The rank at a place of a stage."""
        number, pipeline = place // self.plan.microbatches, self.plan.pipeline
        if pipeline is None:
            return number
        of_stage = Mesh(tuple(axis for axis in pipeline.mesh.axes if axis.name != pipeline.axis))
        rank = pipeline.coordinates[stage] * pipeline.mesh.stride(pipeline.axis)
        for axis in of_stage.axes:
            rank += of_stage.coordinate(number, axis.name) * pipeline.mesh.stride(axis.name)
        return rank

    def stages(self, value: int) -> tuple[int, ...]:
        """The stages that have a value: its maker, or the users of a parameter or field."""
        maker = makers(self.plan).get(value)
        if maker is not None:
            return (self.plan.stage(self.plan.ops[maker].op),)
        return self.plan.stages_of(value) or (0,)
