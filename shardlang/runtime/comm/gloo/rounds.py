"""Collectives of CPU ranks, built from gloo's all-to-all, where all members talk at once.

Gloo's own reduce, reduce-scatter and all-gather go round a ring, one member after the other, which
costs a switch of processes a step. The all-to-all moves the same bytes (small sums: more bytes in
one round). Measured with 8 ranks on 2 cores: 8 ms for 29 ms. Sums of many bytes are left to the
ring: it adds in place, where the other way copies, and by then its switches do not matter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.ready import AsyncResult, begin_in_place
from shardlang.runtime.comm.record import LoggedWork, about, here, record

# A sum goes in one round, where every member sends all of it to all and adds up for itself, as long
# as that is at most so many bytes; in two rounds it sends at most twice its own.
_ONE_ROUND = 262_144

# From so many bytes for each member on, a sum goes round the ring. Measured on 2, 4 and 8 ranks:
# below 1 MB a member on 4 and 8 ranks it takes longer, above on none; on 2, processor time is a
# third less.
_RING = 524_288

# Maxima and minima above so many bytes go round it too.
_LARGE_EXTREME = 32_768


def total(parts: Tensor, how: str = "sum") -> Tensor:
    """[members, ...] -> [...]. All members add in the same order, so that all get the same bits."""
    if how == "sum":
        return parts.sum(0, dtype=parts.dtype)
    return parts.amax(0) if how == "max" else parts.amin(0)


class OneRound(AsyncResult):
    """Every member's tensor on its way here, to be reduced when it has come: [members, ...]."""

    def __init__(self, parts: Tensor, work: Any, how: str) -> None:
        self.parts, self.work, self.how = parts, work, how

    def wait(self) -> Tensor:
        self.work.wait()
        return total(self.parts, self.how)


class TwoRounds(AsyncResult):
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


def _copies(x: Tensor, count: int) -> Tensor:
    """[count * elements]: x so many times. (Five times as fast as `repeat` where x is small.)"""
    return torch.cat([x.view(-1)] * count)


def _by_ring(x: Tensor, group: Group, how: str) -> bool:
    """Whether gloo's own reduction is the quicker one. Elements that are narrower than 4 bytes
    would be rounded at each member."""
    if how != "sum":
        return bool(x.nbytes > _LARGE_EXTREME)
    return bool(x.nbytes >= _RING * group.size and x.itemsize >= 4)


def begin_reduce(x: Tensor, group: Group, how: str, own: bool) -> AsyncResult:
    """Starts the sum (max, min) of `x`, which becomes the result only where it is the caller's
    `own`."""
    if _by_ring(x, group, how):
        return begin_in_place(x if own else x.clone(), group, how)
    if how == "sum" and x.nbytes * (group.size - 1) > _ONE_ROUND:
        return TwoRounds(x, group)
    sent = _copies(x, group.size)
    parts = torch.empty_like(sent)
    work = LoggedWork("all-reduce", group, x).of(group.handle(x).alltoall_base(parts, sent, [], []))
    return OneRound(parts.view(group.size, *x.shape), work, how)


def begin_reduce_scatter(x: Tensor, group: Group) -> AsyncResult:
    """Starts the sum of `x` [members, ...]; the result is this member's row of it."""
    parts = torch.empty_like(x)
    work = LoggedWork("reduce-scatter", group, x).of(group.handle(x).alltoall_base(parts.view(-1), x.view(-1), [], []))
    return OneRound(parts, work, "sum")


def begin_all_gather(x: Tensor, group: Group) -> AsyncResult:
    """Starts to bring every member's `x` here: [members, *x.shape]."""
    result, sent = x.new_empty((group.size, *x.shape)), _copies(x, group.size)
    work = LoggedWork("all-gather", group, result).of(group.handle(x).alltoall_base(result.view(-1), sent, [], []))
    return AsyncResult(result, work, sent)
