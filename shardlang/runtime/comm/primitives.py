"""The collectives that blocks.py and the buckets are made of, on contiguous tensors, in torch's own
order of members.

NCCL's are used as they are. Gloo's reduce, reduce-scatter and all-gather go round a ring, one
member after the other, which costs a switch of processes a step; here they are built from its
all-to-all, where all members talk at once. It moves the same bytes (small sums: more bytes in one
round). Measured with 8 ranks on 2 cores: 8 ms for 29 ms. Sums of many bytes are left to the ring:
it adds in place, where the other way copies, and by then its switches do not matter. Which member
holds which block is not known here."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardlang.runtime.comm.mesh import Group, everyone, world
from shardlang.runtime.comm.record import LoggedWork, about, here, record

# A sum goes in one round, where every member sends all of it to all and adds up for itself, as long
# as that is at most so many bytes; in two rounds it sends at most twice its own.
_ONE_ROUND = 262_144

# From so many bytes for each member on, a sum goes round the ring. Measured on 2, 4 and 8 ranks:
# below 1 MB a member on 4 and 8 ranks it takes longer, above on none; on 2, processor time is a
# third less.
_RING = 524_288

# Maxima and minima above so many bytes are left to torch.
_LARGE_EXTREME = 32_768

_OPTIONS = {name: dist.AllreduceOptions() for name in ("sum", "max", "min")}
_OPTIONS["max"].reduceOp = dist.ReduceOp.MAX
_OPTIONS["min"].reduceOp = dist.ReduceOp.MIN


def total(parts: Tensor, how: str = "sum") -> Tensor:
    """[members, ...] -> [...]. All members add in the same order, so that all get the same bits."""
    if how == "sum":
        return parts.sum(0, dtype=parts.dtype)
    return parts.amax(0) if how == "max" else parts.amin(0)


class CompletedWork:
    """The result of a collective that nothing is left to wait for."""

    def __init__(self, result: Tensor) -> None:
        self.result = result

    def advance(self) -> None:
        """Starts a second round, where there is one and the first is over."""

    def wait(self) -> Tensor:
        return self.result


class Awaited(CompletedWork):
    """A result that is there once `work` is done, which reads `sent` until then."""

    def __init__(self, result: Tensor, work: Any, sent: Tensor | None = None) -> None:
        super().__init__(result)
        self.work, self.sent = work, sent

    def wait(self) -> Tensor:
        self.work.wait()
        return self.result


class OneRound(CompletedWork):
    """Every member's tensor on its way here, to be reduced when it has come: [members, ...]."""

    def __init__(self, parts: Tensor, work: Any, how: str) -> None:
        self.parts, self.work, self.how = parts, work, how

    def wait(self) -> Tensor:
        self.work.wait()
        return total(self.parts, self.how)


class TwoRounds(CompletedWork):
    """A large sum: each member adds up one chunk of it, then sends that to all."""

    def __init__(self, x: Tensor, group: Group) -> None:
        self.shape, self.group = x.shape, group
        self.sizes = [len(chunk) for chunk in x.view(-1).tensor_split(group.size)]
        mine = self.sizes[group.slot]
        self.parts = x.new_empty((group.size, mine))
        self.site = record.site or here()
        self.work = LoggedWork("all-reduce", group, x).of(
            group.handle(x).alltoall_base(self.parts.view(-1), x.view(-1), [mine] * group.size, self.sizes)
        )
        self.result: Tensor | None = None

    def advance(self) -> None:
        self.work.wait()
        mine = total(self.parts, "sum")
        self.result = mine.new_empty(sum(self.sizes))
        with about(self.site):
            begun = LoggedWork("all-reduce", self.group, self.result)
        self.work = begun.of(
            self.group.handle(mine).alltoall_base(
                self.result, _copies(mine, self.group.size), self.sizes, [len(mine)] * self.group.size
            )
        )

    def wait(self) -> Tensor:
        if self.result is None:
            self.advance()
        self.work.wait()
        assert self.result is not None
        return self.result.view(self.shape)


def _native(x: Tensor) -> bool:
    return not x.is_cpu


def in_place(x: Tensor, how: str) -> bool:
    """Whether a reduction of `x` writes into it."""
    return _native(x) or (how != "sum" and x.numel() * x.element_size() > _LARGE_EXTREME)


def _copies(x: Tensor, count: int) -> Tensor:
    """[count * elements]: x so many times. (Five times as fast as `repeat` where x is small.)"""
    return torch.cat([x.view(-1)] * count)


def begin_reduce(x: Tensor, group: Group, how: str = "sum", own: bool = False) -> CompletedWork:
    """Starts the sum (max, min) of contiguous `x` over the group. `x` must not be written into
    until then; it may become the result, where `in_place(x, how)`, or where it is the caller's
    `own`."""
    if x.numel() == 0:
        return CompletedWork(x)
    if in_place(x, how):
        return Awaited(x, LoggedWork("all-reduce", group, x).of(group.handle(x).allreduce([x], _OPTIONS[how])), x)
    size = x.numel() * x.element_size()
    # Narrower elements would be rounded at each member.
    if how == "sum" and size >= _RING * group.size and x.element_size() >= 4:
        total = x if own else x.clone()
        return Awaited(
            total, LoggedWork("all-reduce", group, x).of(group.handle(x).allreduce([total], _OPTIONS[how])), total
        )
    if how == "sum" and size * (group.size - 1) > _ONE_ROUND:
        return TwoRounds(x, group)
    sent = _copies(x, group.size)
    parts = torch.empty_like(sent)
    work = LoggedWork("all-reduce", group, x).of(group.handle(x).alltoall_base(parts, sent, [], []))
    return OneRound(parts.view(group.size, *x.shape), work, how)


def begin_reduce_scatter(x: Tensor, group: Group) -> CompletedWork:
    """Starts the sum of contiguous `x` [members, ...]; the result is this member's row of it."""
    if x.numel() == 0:
        return CompletedWork(x[0])
    if _native(x):
        result = torch.empty_like(x[0])
        native = LoggedWork("reduce-scatter", group, x)
        return Awaited(result, native.of(group.handle(x)._reduce_scatter_base(result.view(-1), x.view(-1))), x)
    parts = torch.empty_like(x)
    work = LoggedWork("reduce-scatter", group, x).of(group.handle(x).alltoall_base(parts.view(-1), x.view(-1), [], []))
    return OneRound(parts, work, "sum")


def begin_all_gather(x: Tensor, group: Group) -> CompletedWork:
    """Starts to bring every member's contiguous `x` here: [members, *x.shape]."""
    result = x.new_empty((group.size, *x.shape))
    if x.numel() == 0:
        return CompletedWork(result)
    work = LoggedWork("all-gather", group, result)
    if _native(x):
        return Awaited(result, work.of(group.handle(x)._allgather_base(result.view(-1), x.view(-1))), x)
    sent = _copies(x, group.size)
    return Awaited(result, work.of(group.handle(x).alltoall_base(result.view(-1), sent, [], [])), sent)


def put_together(x: Tensor) -> Tensor:
    """A tensor of which every rank of the run has some elements, and zeros elsewhere; no two have
    the same. It is added up as bytes, so that -0.0 and numbers that are none stay what they are."""
    if world.size == 1:
        return x
    sent = x.contiguous().reshape(-1).view(torch.uint8)
    return begin_reduce(sent, everyone()).wait().view(x.dtype).view(x.shape)


def meet() -> None:
    """Returns once every rank of the run has come here."""
    if world.size > 1:
        with about(b"all ranks meet"):
            all_gather(torch.zeros(1), everyone())


def all_gather(x: Tensor, group: Group) -> Tensor:
    """Every member's contiguous `x`: [members, *x.shape]."""
    return begin_all_gather(x, group).wait()
