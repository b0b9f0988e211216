"""ZeRO: shards optimizer state (1), gradients (2) and parameters (3) over further axes, along dim 0
in torch.chunk's sizes.

Gradients are reduce-scattered in flat buckets, each rank updates its rows. With levels 1 and 2
these are then all-gathered, while the next step begins; level 3 keeps the rows alone, see zero3.py.
Which parameters, and over which axes, the plan has decided."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.state.buckets import Reduction


def rows(tensor: Tensor) -> Tensor:
    """The tensor with a dim 0 to cut: a scalar becomes one row."""
    return tensor if tensor.dim() else tensor.view(1)


def shard(tensor: Tensor, group: Group) -> Tensor:
    """This rank's rows, a view."""
    whole = rows(tensor)
    return whole.narrow(0, group.start(len(whole)), group.chunk(len(whole)))


def width(shape: Sequence[int], group: Group) -> int:
    """Elements of the first member's rows, the most that one has."""
    return -(-(shape[0] if shape else 1) // group.size) * math.prod(shape[1:])


def padded(piece: Tensor, length: int) -> Tensor:
    """A piece's elements with zeros behind, up to `length`."""
    flat = piece.reshape(-1)  # `pad` would copy it where there is nothing to add
    return flat if len(flat) == length else torch.nn.functional.pad(flat, (0, length - len(flat)))


def wholes(flat: Tensor, shapes: Sequence[Sequence[int]], group: Group) -> Iterator[Tensor]:
    """[members, sum of widths] -> each tensor whole, in memory of its own."""
    ordered = flat if group.in_order else flat[list(group.slots)]
    # Copies, since a view would be no memory of its own.
    pieces = torch.split_with_sizes_copy(ordered, [width(shape, group) for shape in shapes], 1)
    for piece, shape in zip(pieces, shapes, strict=True):
        yield piece.view(-1)[: math.prod(shape)].view(tuple(shape))


def packed(tensors: Sequence[Tensor], group: Group) -> Tensor:
    """[members, sum of widths] in torch's order: every tensor's rows by member, each padded to the
    first member's."""
    some = [rows(tensor) for tensor in tensors if tensor.numel()]
    flat = torch._chunk_cat(some, 0, group.size) if some else tensors[0].new_zeros((group.size, 0))
    return flat if group.in_order else flat[list(group.order)]


class Shared(Protocol):
    """A sharded parameter. leaf: as autograd knows it; piece: the rows that this rank updates."""

    leaf: Tensor
    piece: Tensor
    shape: tuple[int, ...]

    def take(self) -> Tensor | None:
        """The gradient of the whole that has been accumulated; it is then forgotten."""


class Held:
    """Levels 1 and 2: every rank has the whole, `leaf`; `piece` is a view of it."""

    def __init__(self, leaf: Tensor, group: Group) -> None:
        self.leaf, self.shape = leaf, tuple(leaf.shape)
        self.piece = shard(leaf.detach(), group)

    def take(self) -> Tensor | None:
        gradient, self.leaf.grad = self.leaf.grad, None
        return gradient


class ShardBucket:
    """One reduce-scatter of gradients over the sharding axes; with levels 1 and 2 one all-gather of
    the updated rows.

    In the flat tensor, row i of `group.size` holds member i's rows of every parameter, each padded
    to the first member's. Levels 2 and 3 reduce in each microbatch, so that no rank keeps whole
    gradients from one to the next."""

    def __init__(self, parameters: Sequence[Shared], how: Reduction) -> None:
        group, reduce = how.mesh[how.shard], how.sum
        self.parameters, self.group, self.each = list(parameters), group, how.each
        self.members = [parameter.leaf for parameter in self.parameters]
        shared = set(group.axes) & set(reduce)
        # Where only some of the sharding axes are pending, the sum comes before the cut, else as
        # much as can after it.
        self.pending = shared == set(group.axes)
        before = reduce if shared and not self.pending else ()
        after = tuple(axis for axis in reduce if axis not in shared) if not before else ()
        self.before = how.over(before) if before else None
        self.after = how.over(after) if not before else None
        self.widths = [width(parameter.shape, group) for parameter in self.parameters]
        self.sum: primitives.Ready | None = None
        self.total: Tensor | None = None
        self.coming: primitives.Ready | None = None

    @property
    def groups(self) -> list[Group]:
        return [group for group in (self.group, self.before, self.after) if group is not None]

    def launch(self) -> None:
        self._collect()
        taken = [(parameter, parameter.take()) for parameter in self.parameters]
        flat = packed([p.piece.new_zeros(p.shape) if t is None else t for p, t in taken], self.group)
        if self.before is not None and self.before.size > 1:
            flat = primitives.begin_reduce(flat, self.before, own=True).wait()
        if self.pending:
            self.sum = primitives.begin_reduce_scatter(flat, self.group)
        else:
            self.sum = primitives.Ready(flat[self.group.slot])

    def _collect(self) -> None:
        """Adds the rows on their way to those of earlier microbatches."""
        if self.sum is None:
            return
        rows_ = self.sum.wait()
        self.total = rows_ if self.total is None else self.total.add_(rows_)
        self.sum = None

    def advance(self) -> None:
        """The sum over further axes, if any."""
        self._collect()
        if self.after is not None and self.after.size > 1 and self.total is not None:
            self.sum, self.total = primitives.begin_reduce(self.total.contiguous(), self.after, own=True), None

    def finish(self) -> None:
        self._collect()
        assert self.total is not None
        for parameter, values in zip(self.parameters, self.total.split(self.widths), strict=True):
            piece = parameter.piece
            piece.grad = values[: piece.numel()].view(piece.shape)
        self.total = None

    def publish(self) -> None:
        """Starts to bring each member's updated rows to all; `settle` ends it."""
        pieces = [parameter.piece for parameter in self.parameters]
        mine = torch.cat([padded(piece, wide) for piece, wide in zip(pieces, self.widths, strict=True)])
        self.settle()
        self.coming = primitives.begin_all_gather(mine, self.group)

    @torch.no_grad()
    def settle(self) -> None:
        """Waits for the updated rows, if any are on their way: then the parameters are whole."""
        if self.coming is None:
            return
        flat, self.coming = self.coming.wait(), None
        shapes = [parameter.shape for parameter in self.parameters]
        leaves = [parameter.leaf.detach() for parameter in self.parameters]
        torch._foreach_copy_(leaves, list(wholes(flat, shapes, self.group)))
