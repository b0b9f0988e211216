"""How ranks keep parameters and states, and what becomes of a parameter's gradients once a step.

Turns whole tensors into what each rank stores (a block, or with ZeRO some rows of it), that into
the form that operators start from, and local gradients into the gradient of what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from shardlang.interpret.ranks import exchanges
from shardlang.interpret.ranks.coordinates import (
    Block,
    SizesOfDims,
    block_of,
    cut_out,
    groups_of,
    parts_of,
    sizes_of_dims,
)
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh


@dataclass(frozen=True)
class Storage:
    """Where one parameter or state lies. part_sizes: per dim the sizes of its parts, if listed.
    Under ZeRO a rank's rows are its part of the first dim of its block."""

    shape: tuple[int, ...]
    plan: ParamPlan
    mesh: Mesh
    part_sizes: SizesOfDims = ()

    @property
    def ranks(self) -> range:
        return range(self.mesh.size)

    def block(self, rank: int) -> Block:
        """The block of the whole that a rank stores."""
        block = block_of(self.mesh, rank, self.shape, self.plan.stored, self.part_sizes)
        if not self.plan.zero:
            return block
        start, size = block[0]
        first, rows = parts_of(self.mesh, size, self.plan.zero_axes)[rank]
        return ((start + first, rows), *block[1:])

    def store(self, whole: Tensor) -> list[Tensor]:
        return [cut_out(whole, self.block(rank)).clone() for rank in self.ranks]

    def assembled(self, pieces: Sequence[Tensor]) -> Tensor:
        """The whole, from what all ranks store: the inverse of `store`."""
        whole = pieces[0].new_empty(self.shape)
        for rank in self.ranks:
            cut_out(whole, self.block(rank)).copy_(pieces[rank])
        return whole

    def gather(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """The values that operators start from: the blocks, put together from their rows; without
        ZeRO, what is stored itself."""
        if not self.plan.zero:
            return list(pieces)
        groups = groups_of(self.mesh, self.plan.zero_axes)
        return exchanges.exchange(pieces, groups, lambda xs: exchanges.gathered(0, xs), exchanges.nothing)

    def reduce(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradient of what each rank stores: summed over pending axes, only its rows kept."""
        groups = groups_of(self.mesh, self.plan.reduce_axes)
        sums = exchanges.exchange(gradients, groups, exchanges.summed, exchanges.nothing)
        if not self.plan.zero:
            return sums
        rows = (parts_of(self.mesh, x.shape[0], self.plan.zero_axes)[rank] for rank, x in enumerate(sums))
        return [x.narrow(0, *mine) for x, mine in zip(sums, rows, strict=True)]


def storage(plan: Plan, value: int) -> Storage:
    """The storage of a parameter or state; one that the plan does not name is whole everywhere."""
    produced = plan.produced[value]
    planned = plan.params.get(value, ParamPlan(value, Layout(produced.dims, mesh=produced.mesh), ()))
    type = plan.graph.values[value].type
    return Storage(type.shape, planned, plan.meshes[planned.stored.mesh], sizes_of_dims(type, plan.sizes))
