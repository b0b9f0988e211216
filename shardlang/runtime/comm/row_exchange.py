"""Lookups in a table whose rows are split over the ranks that the ids are split over: ids go to the
ranks that have their rows, rows come back, and gradients of rows go where the rows came from.

Each is an all-to-all of as many as there are, and no id is asked for twice by one rank. The lookup
decides what becomes of the gradients of rows (kept as rows, or dense)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.comm.blocks import chunk_sizes
from shardlang.runtime.comm.mesh import Group, world
from shardlang.runtime.comm.record import LoggedWork, about, here


def exchanged_embedding(
    ids: Tensor, table: Tensor, rows: int, group: Group, sizes: Sequence[int] | None = None, sparse: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """[*ids, width]: rows of a table of `rows`, of which each member has one part, in torch.chunk's
    sizes or `sizes`.

    sparse: the table's gradient is kept as rows. dtype: rows are sent in that type."""
    parts = chunk_sizes(rows, group.size) if sizes is None else sizes
    starts = [0, *itertools.accumulate(parts)]
    wanted, where = torch.unique(ids.reshape(-1), return_inverse=True)
    asked = _asked(wanted, starts, group)
    found = F.embedding(asked.ids - starts[group.index], table, sparse=sparse).to(dtype or table.dtype)
    arrived = _Rows.apply(found, asked) if found.requires_grad and torch.is_grad_enabled() else _back(found, asked)
    return F.embedding(where, arrived).view(*ids.shape, table.shape[1])


@dataclass(frozen=True)
class _Asked:
    """ids: those that this rank was asked for, by member. counts: how many, by torch's numbers of
    the members. mine: how many this rank asked of each. order: its ids, ascending, in the order in
    which they were sent; None: the same."""

    ids: Tensor
    counts: list[int]
    mine: list[int]
    order: Tensor | None
    group: Group


def _asked(wanted: Tensor, starts: Sequence[int], group: Group) -> _Asked:
    """Sends each member the ids, of those in ascending order, whose rows it has."""
    bounds = torch.searchsorted(wanted, torch.tensor(starts, dtype=wanted.dtype, device=wanted.device))
    mine, order = bounds.diff(), None
    if not group.in_order:
        pieces = [torch.arange(bounds[i], bounds[i + 1]) for i in group.order]
        mine, order = mine[list(group.order)], torch.cat(pieces).to(wanted.device)
        wanted = wanted[order]
    ones = [1] * group.size
    counts = _all_to_all(mine, ones, ones, group).tolist()
    sent = mine.tolist()
    return _Asked(_all_to_all(wanted, counts, sent, group), counts, sent, order, group)


def _all_to_all(x: Tensor, receive: Sequence[int], send: Sequence[int], group: Group) -> Tensor:
    """The next send[i] of x to member i of the handle, from each so many as `receive` says."""
    source = x.to(world.device).contiguous()
    result = source.new_empty((sum(receive), *x.shape[1:]))
    counts = list(receive), list(send)
    LoggedWork("row exchange", group, source).of(group.handle(source).alltoall_base(result, source, *counts)).wait()
    return result.to(x.device)


def _back(found: Tensor, asked: _Asked) -> Tensor:
    """Rows to those who asked for them; what arrives is in the order of this rank's ids."""
    rows = _all_to_all(found, asked.mine, asked.counts, asked.group)
    return rows if asked.order is None else torch.empty_like(rows).index_copy_(0, asked.order, rows)


def _forth(gradient: Tensor, asked: _Asked) -> Tensor:
    """Gradients of the rows that this rank asked for to those who have the rows."""
    sent = gradient if asked.order is None else gradient[asked.order]
    return _all_to_all(sent, asked.counts, asked.mine, asked.group)


class _Rows(Function):
    @staticmethod
    def forward(ctx: Any, found: Tensor, asked: _Asked) -> Tensor:
        ctx.asked, ctx.site = asked, here()
        return _back(found, asked)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with about(ctx.site):
            return _forth(gradient, ctx.asked), None
