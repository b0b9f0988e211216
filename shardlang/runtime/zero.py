"""ZeRO: shards optimizer state (1), gradients (2) and parameters (3) over further axes, along dim 0 in torch.chunk's
sizes.

Levels 1 and 2: gradients are reduce-scattered in flat buckets, each rank updates its rows, which are then
all-gathered once. Level 3: a parameter is stored as this rank's rows, gathered at each use in forward and again in
backward, freed in between. Which parameters, and over which axes, the plan has decided.
"""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime import wire
from shardlang.runtime.blocks import chunk_sizes, gathered, reduced, scattered, sliced
from shardlang.runtime.buckets import Reduction
from shardlang.runtime.mesh import Group


def rows(tensor: Tensor) -> Tensor:
    """The tensor with a dim 0 to cut: a scalar becomes one row."""
    return tensor if tensor.dim() else tensor.view(1)


def shard(tensor: Tensor, group: Group) -> Tensor:
    """This rank's rows, a view."""
    whole = rows(tensor)
    return whole.narrow(0, group.start(len(whole)), group.chunk(len(whole)))


class ShardBucket:
    """Levels 1 and 2: one reduce-scatter of gradients pending on `group`, one all-gather of the updated rows.

    In the flat tensor, row i of `group.size` holds member i's rows of every parameter, each padded to the first
    member's. Level 2 does so in each microbatch, so that no rank keeps whole gradients from one to the next.
    """

    def __init__(self, members: list[Tensor], how: Reduction) -> None:
        group, reduce = how.mesh[how.shard], how.sum
        self.members, self.group, self.each = members, group, how.each
        shared = set(group.axes) & set(reduce)
        # Where only some of the sharding axes are pending, the sum comes before the cut, else as much as can after it.
        self.pending = shared == set(group.axes)
        before = reduce if shared and not self.pending else ()
        after = tuple(axis for axis in reduce if axis not in shared) if not before else ()
        self.before = how.over(before) if before else None
        self.after = how.over(after) if not before else None
        self.shards = [shard(member.detach(), group) for member in members]
        self.widths = [-(-len(rows(m)) // group.size) * _row(m) for m in members]
        self.sum: wire.Ready | None = None
        self.total: Tensor | None = None

    def _pack(self, tensors: list[Tensor | None]) -> Tensor:
        first = self.members[0]
        flat = torch.zeros((self.group.size, sum(self.widths)), dtype=first.dtype, device=first.device)
        column = 0
        for tensor, width in zip(tensors, self.widths, strict=True):
            if tensor is not None:
                self._place(flat, column, width, tensor)
            column += width
        return flat

    def _place(self, flat: Tensor, column: int, width: int, tensor: Tensor) -> None:
        """Writes a whole parameter's values into its columns of all rows."""
        values = tensor.reshape(-1)
        for row, at in enumerate(self._slots()):
            part = values[row * width : (row + 1) * width]
            flat[at, column : column + len(part)] = part

    def _slots(self) -> tuple[int, ...]:
        return self.group.slots or tuple(range(self.group.size))

    def launch(self) -> None:
        self._collect()
        flat = self._pack([member.grad for member in self.members])
        for member in self.members:
            member.grad = None
        if self.before is not None and self.before.size > 1:
            flat = wire.begin_reduce(flat, self.before).wait()
        if self.pending:
            self.sum = wire.begin_reduce_scatter(flat, self.group)
        else:
            self.sum = wire.Ready(flat[self._slots()[self.group.index]])

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
            self.sum, self.total = wire.begin_reduce(self.total.contiguous(), self.after), None

    def finish(self) -> None:
        self._collect()
        assert self.total is not None
        for piece, values in zip(self.shards, self.total.split(self.widths), strict=True):
            piece.grad = values[: piece.numel()].view(piece.shape)
        self.total = None

    def publish(self) -> None:
        """All-gathers the rows that each member has updated."""
        for piece in self.shards:
            piece.grad = None
        mine = torch.cat([_padded(piece, width) for piece, width in zip(self.shards, self.widths, strict=True)])
        flat = wire.all_gather(mine, self.group)
        column = 0
        for member, width in zip(self.members, self.widths, strict=True):
            values = flat[list(self._slots()), column : column + width].reshape(-1)
            member.detach().view(-1).copy_(values[: member.numel()])
            column += width


def _row(tensor: Tensor) -> int:
    """Elements of one row."""
    whole = rows(tensor)
    return whole[0].numel() if len(whole) else 0


def _padded(piece: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(piece.reshape(-1), (0, width - piece.numel()))


class Stored:
    """Level 3: the rows of a parameter that this rank stores, `piece` [rows, ...]; calling it gathers the whole.

    group: the axes that shard it. pending: those of its gradient's pending axes that are among them, as a group (or
    None).
    """

    def __init__(self, piece: Tensor, shape: tuple[int, ...], group: Group, pending: Group | None) -> None:
        self.piece, self.shape, self.group, self.pending = piece, shape, group, pending
        self.sizes = chunk_sizes(shape[0] if shape else 1, group.size)

    def gather(self) -> Tensor:
        """The whole (of what this rank would hold without ZeRO), without gradient."""
        even = None if len(set(self.sizes)) == 1 else self.sizes
        return gathered(self.piece.detach(), 0, self.group, even).view(self.shape)

    def keep(self, gradient: Tensor) -> Tensor:
        """The whole's gradient -> that of the piece, summed where it is pending over the sharding axes."""
        even = None if len(set(self.sizes)) == 1 else self.sizes
        if self.pending is not None and set(self.pending.axes) == set(self.group.axes):
            return scattered(rows(gradient), 0, self.group, even)
        if self.pending is not None:
            gradient = reduced(gradient, self.pending)
        return sliced(rows(gradient), 0, self.group, even).contiguous()

    def __call__(self) -> Tensor:
        whole = _Gather.apply(self.piece, self)
        Held.note(whole, self)
        return whole


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, piece: Tensor, stored: Stored) -> Tensor:
        ctx.stored = stored
        return stored.gather()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.stored.keep(gradient), None


class Held:
    """Gathered parameters that are alive now, by the address of their memory, so that what autograd saves is
    recognised.
    """

    alive: ClassVar[dict[int, tuple[weakref.ref[Tensor], Stored]]] = {}
    again: ClassVar[weakref.WeakValueDictionary[int, Tensor]] = weakref.WeakValueDictionary()

    @classmethod
    def note(cls, whole: Tensor, stored: Stored) -> None:
        cls.alive[whole.untyped_storage().data_ptr()] = (weakref.ref(whole), stored)

    @classmethod
    def owner(cls, tensor: Tensor) -> Stored | None:
        """The parameter whose gathered memory `tensor` views, if that is still alive (else the address may be
        another's).
        """
        found = cls.alive.get(tensor.untyped_storage().data_ptr())
        return found[1] if found is not None and found[0]() is not None else None


def _pack(tensor: Tensor) -> Any:
    stored = Held.owner(tensor)
    if stored is None:
        return tensor
    return stored, tensor.size(), tensor.stride(), tensor.storage_offset()


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    stored, size, stride, offset = packed
    whole = Held.again.get(id(stored))
    if whole is None:
        whole = stored.gather()
        Held.again[id(stored)] = whole
    return _view(whole, size, stride, offset)


def _view(whole: Tensor, size: Any, stride: Any, offset: int) -> Tensor:
    view = whole.as_strided(size, stride, offset)
    view._whole = whole  # type: ignore[attr-defined]  # keeps `again`'s entry alive as long as one view of it is
    return view


def freed_between() -> Any:
    """Context of a forward pass: gathered parameters that autograd saves are dropped, and gathered anew in backward."""
    return torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)
