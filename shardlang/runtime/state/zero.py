"""ZeRO: shards optimizer state (1), gradients (2) and parameters (3) over further axes, along dim 0
in torch.chunk's sizes.

Gradients are reduce-scattered in flat buckets, each rank updates its rows. With levels 1 and 2
these are then all-gathered, in the type that forward reads, while the next step begins; level 3
keeps the rows alone, see zero3.py.
Which parameters, and over which axes, the plan has decided."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group, TiedGroup
from shardlang.runtime.comm.record import naming
from shardlang.runtime.state import mapped
from shardlang.runtime.state.buckets import BucketReduction, GradientBucket


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


def joined(pieces: Sequence[Tensor], widths: Sequence[int], dtype: torch.dtype, into: Tensor | None = None) -> Tensor:
    """[sum of widths], as `dtype`: each piece at the begin of its own part; nobody reads what is
    behind it."""
    flat = pieces[0].new_empty(sum(widths), dtype=dtype) if into is None else into
    parts = [part[: p.numel()].view(p.shape) for part, p in zip(flat.split(list(widths)), pieces, strict=True)]
    torch._foreach_copy_(parts, list(pieces))
    return flat


def _ordered(flat: Tensor, group: Group) -> Tensor:
    """A row for each member, in torch's order."""
    return flat if group.in_order else flat[list(group.slots)]


def wholes(flat: Tensor | list[Tensor], shapes: Sequence[Sequence[int]], group: Group) -> Iterator[Tensor]:
    """[members, sum of widths], or a vector of each member -> each tensor whole, in memory of its
    own."""
    widths = [width(shape, group) for shape in shapes]
    # Copies, since a view would be no memory of its own.
    if isinstance(flat, list):
        pieces = tuple(map(torch.cat, zip(*(flat[slot].split(widths) for slot in group.slots), strict=True)))
    else:
        pieces = torch.split_with_sizes_copy(_ordered(flat, group), widths, 1)
    for piece, shape in zip(pieces, shapes, strict=True):
        yield piece.view(-1)[: math.prod(shape)].view(tuple(shape))


def gathered(piece: Tensor, shape: Sequence[int], group: Group, dtype: torch.dtype) -> Tensor:
    """The whole of a tensor whose rows are `piece` here, as `dtype`."""
    mine = joined([piece.detach()], [width(shape, group)], dtype)
    return next(wholes(primitives.all_gather(mine, group), [shape], group))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def unpack(flat: Tensor, group: Group, into: Sequence[Tensor]) -> None:
    """[members, bytes of their rows] -> the tensors `into`, whole."""
    widths = [width(tensor.shape, group) * tensor.itemsize for tensor in into]
    even = [tensor.nbytes == group.size * wide for tensor, wide in zip(into, widths, strict=True)]
    parts = [
        _bytes(tensor).view(group.size, wide) if fits else flat.new_empty((group.size, wide))
        for tensor, wide, fits in zip(into, widths, even, strict=True)
    ]
    torch.split_with_sizes_copy(_ordered(flat, group), widths, 1, out=parts)
    for tensor, part, fits in zip(into, parts, even, strict=True):
        if not fits:
            _bytes(tensor).copy_(part.view(-1)[: tensor.nbytes])


def packed(tensors: Sequence[Tensor], group: Group, into: Tensor | None = None) -> Tensor:
    """[members, sum of widths] in torch's order: every tensor's rows by member, each padded to the
    first member's."""
    some = [rows(tensor) for tensor in tensors if tensor.numel()]
    if into is not None and group.in_order and some:
        return torch._chunk_cat(some, 0, group.size, out=into)
    flat = torch._chunk_cat(some, 0, group.size) if some else tensors[0].new_zeros((group.size, 0))
    flat = flat if group.in_order else flat[list(group.order)]
    return flat if into is None else into.copy_(flat)


class ShardedParameter(Protocol):
    """A sharded parameter. leaf: as autograd knows it; piece: the rows that this rank updates."""

    leaf: Tensor
    piece: Tensor
    shape: tuple[int, ...]

    def take(self) -> Tensor | None:
        """The gradient of the whole that has been accumulated; it is then forgotten."""

    def gather(self) -> Tensor:
        """The whole in the parameter's own type."""


class Zero12Parameter:
    """Levels 1 and 2: every rank has the `whole`, in the type that forward reads; `rows` are its
    own of that.

    Without a copy in another type the whole is `value`, the leaf too, and `piece` its rows. With a
    `copy`, the rows are all that is kept of `value`; the leaf has its shape and no memory."""

    def __init__(self, value: Tensor, group: Group, copy: Tensor | None = None) -> None:
        self.shape, self.group = tuple(value.shape), group
        self.whole = value.detach() if copy is None else copy
        self.rows = shard(self.whole, group)
        self.piece = self.rows if copy is None else mapped.clone(shard(value, group))
        leaf = value if copy is None else value.new_zeros(()).expand(self.shape)
        self.leaf = leaf.requires_grad_()

    def take(self) -> Tensor | None:
        gradient, self.leaf.grad = self.leaf.grad, None
        return gradient

    def gather(self) -> Tensor:
        """The whole in the parameter's own type."""
        return gathered(self.piece, self.shape, self.group, self.piece.dtype)


class ShardBucket(GradientBucket):
    """One reduce-scatter of gradients over the sharding axes; with levels 1 and 2 one all-gather of
    the updated rows.

    In the flat tensor, row i of `group.size` holds member i's rows of every parameter, each padded
    to the first member's. Levels 2 and 3 reduce in each microbatch, so that no rank keeps whole
    gradients from one to the next."""

    def __init__(self, parameters: Sequence[ShardedParameter], how: BucketReduction) -> None:
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
        self.groups = [each for each in (group, self.before, self.after) if each is not None]
        self.widths = [width(parameter.shape, group) for parameter in self.parameters]
        self.sum: primitives.AsyncResult | None = None
        self.total: Tensor | None = None
        self.coming: primitives.AsyncResult | None = None
        self.sent: list[int] = []
        self.staging: primitives.StagingBuffers | None = None

    def launch(self) -> None:
        self.collect()
        taken = [(parameter, parameter.take()) for parameter in self.parameters]
        gradients = [p.piece.new_zeros(p.shape) if t is None else t for p, t in taken]
        into = self.staging and self.staging.place(self.group.size, sum(self.widths))
        flat = packed(gradients, self.group, into)
        if self.before is not None and self.before.size > 1:
            flat = primitives.begin_reduce(flat, self.before, own=True).wait()
        if self.pending:
            self.sum = primitives.begin_reduce_scatter(flat, self.group, self.staging)
        else:
            self.sum = primitives.AsyncResult(flat[self.group.slot])

    def collect(self) -> None:
        """Adds the rows on their way to those of earlier microbatches."""
        if self.sum is None:
            return
        rows_ = self.sum.wait()
        self.total = rows_ if self.total is None else self.total.add_(rows_)
        self.sum = None

    def advance(self) -> None:
        """The sum over further axes, if any."""
        self.collect()
        if self.after is not None and self.after.size > 1 and self.total is not None:
            self.sum, self.total = primitives.begin_reduce(self.total.contiguous(), self.after, own=True), None

    def finish(self) -> None:
        self.collect()
        assert self.total is not None
        for parameter, values in zip(self.parameters, self.total.split(self.widths), strict=True):
            piece = parameter.piece
            piece.grad = values[: piece.numel()].view(piece.shape)
        self.total = None

    def publish(self) -> None:
        """Starts to bring each member's rows of the wholes to all; `settle` ends it. They go as
        bytes, since some may be of another type."""
        self.settle(newer=True)
        with naming("updated rows", self.paths):
            self.coming = primitives.begin_all_gather(self._rows(), self.group)
        self.sent = self._versions()

    def _rows(self, into: Tensor | None = None) -> Tensor:
        """This rank's rows of the wholes, as they are now."""
        widths = [wide * held.whole.itemsize for wide, held in zip(self.widths, self._held(), strict=True)]
        return joined([_bytes(held.rows) for held in self._held()], widths, torch.uint8, into)

    def _held(self) -> list[Zero12Parameter]:
        return [parameter for parameter in self.parameters if isinstance(parameter, Zero12Parameter)]

    def _versions(self) -> list[int]:
        """How often each of the wholes has been written, as autograd counts it."""
        return [held.whole._version for held in self._held()]

    @torch.no_grad()
    def settle(self, newer: bool = False) -> None:
        """Waits for the other members' updated rows, if any are on their way: then the parameters
        are whole. This rank's own stay where they have been updated again since. newer: they may
        have been, by what autograd does not count (`.data`)."""
        if self.coming is None:
            return
        flat, self.coming = self.coming.wait(), None
        if newer or self.sent != self._versions():
            self._rows(flat[self.group.slot])
        unpack(flat, self.group, [held.whole for held in self._held()])


def staged(buckets: Sequence[ShardBucket]) -> None:
    """Lets buckets of one kind sum up in memory that ranks share, where there is such; all call it.
    One travels at a time, so all have the same two places. Elements that each sum would round go
    by sockets."""
    kinds: dict[Hashable, list[ShardBucket]] = {}
    for bucket in buckets:
        dtype = bucket.parameters[0].piece.dtype
        if bucket.pending and not isinstance(bucket.group, TiedGroup) and dtype.itemsize >= 4:
            kinds.setdefault((bucket.group, dtype), []).append(bucket)
    for alike in kinds.values():
        like, group = alike[0].parameters[0].piece, alike[0].group
        count = group.size * max(sum(bucket.widths) for bucket in alike)
        staging = primitives.stage(group, count, like, like.dtype)
        for bucket in alike:
            bucket.staging = staging
