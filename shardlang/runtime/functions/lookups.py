"""Lookups in dims of which a rank has a part: what is elsewhere gives 0, so the sum over ranks is
the whole lookup.

Also index tensors of a part of a dim, and random numbers of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime import random
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.step.recompute import keeping

__all__ = [
    "arange", "embedding", "gather", "number", "one_hot", "pick", "rand", "randn", "take", "top_k",
    "without_gradient",
]  # fmt: skip


def located(index: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """The place of each index among `size` local ones from `start` on (0 where it is not), and
    whether it is one."""
    local = index - start
    here = (local >= 0) & (local < size)
    return local.where(here, 0), here


def picked(x: Tensor, dim: int, local: Tensor, here: Tensor) -> Tensor:
    """x at `local` along `dim`, 0 where that is not here; of no elements zeros that gradients still
    go back through, and for which backward keeps x as `gather` does."""
    if x.shape[dim] == 0:
        return keeping(x.sum(dim, keepdim=True).expand(local.shape), x)
    return x.gather(dim, local).where(here, 0)


def embedding(ids: Tensor, table: Tensor, start: int = 0) -> Tensor:
    """[*ids, width]: rows of `table`, which begins at row `start`; zeros for rows elsewhere."""
    local, here = located(ids, start, table.shape[0])
    if table.shape[0] == 0:
        return table.new_zeros((*ids.shape, table.shape[1])) + 0.0 * table.sum()
    return F.embedding(local, table).where(here.unsqueeze(-1), 0.0)


def gather(x: Tensor, dim: int, index: Tensor, start: int | None = None) -> Tensor:
    """x at `index` along `dim`, which the index lacks. With `start` x is a part; else 0."""
    lacks = index.dim() < x.dim()
    index = index.unsqueeze(dim) if lacks else index
    if start is None:
        found = x.gather(dim, index.long())
    else:
        found = picked(x, dim, *located(index.long(), start, x.shape[dim]))
    return found.squeeze(dim) if lacks else found


def take(x: Tensor, dim: int, index: Tensor, start: int | None = None) -> Tensor:
    """x at each index along `dim`, in whose place stand the dims of the index. With `start` x is a
    part; else 0."""
    flat = index.reshape(-1)
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    if start is None:
        return x.index_select(dim, flat).view(shape)
    local, here = located(flat, start, x.shape[dim])
    if x.shape[dim] == 0:
        return x.sum(dim, keepdim=True).index_select(dim, torch.zeros_like(local)).view(shape)
    marks = here.view([-1 if d == dim else 1 for d in range(x.dim())])
    return x.index_select(dim, local).where(marks, 0).view(shape)


class _Without(Function):
    """x, whose gradient is 0 where `marks` are true; backward keeps these."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, marks: Tensor) -> Tensor:
        ctx.save_for_backward(marks)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (marks,) = ctx.saved_tensors
        return gradient.masked_fill(marks.unsqueeze(-1), 0.0), None


def without_gradient(rows: Tensor, marks: Tensor) -> Tensor:
    """Rows [*marks, width], through which no gradient goes where `marks` are true."""
    return _Without.apply(rows, marks)


def pick(x: Tensor, dim: int, index: int, start: int) -> Tensor:
    """x at `index` along `dim`, of which this is the part from `start`; zeros where it lies
    elsewhere."""
    at = index - start
    if 0 <= at < x.shape[dim]:
        return x.select(dim, at).clone()
    nothing = x.narrow(dim, 0, 0)
    return nothing.sum(dim) if x.is_floating_point() else nothing.sum(dim).to(x.dtype)


def one_hot(ids: Tensor, size: int, start: int = 0) -> Tensor:
    """i64 [*ids, size]: 1 at the index, for the classes from `start`."""
    classes = random.places(start, size, ids.device)
    return (ids.unsqueeze(-1) == classes).long()


def arange(size: int, start: int = 0) -> Tensor:
    """i64 [size] from `start`, on this rank's device."""
    return random.places(start, size, world.device)


def number(value: float, dtype: torch.dtype) -> Tensor:
    """[]: a number for operators that take tensors alone, on this rank's device."""
    return torch.full((), value, dtype=dtype, device=world.device)


def rand(
    shape: Sequence[int], key: random.Key, whole: Sequence[int] | None = None, offsets: Sequence[int] | None = None
) -> Tensor:
    """float32 [*shape], uniform in [0, 1): the part at `offsets` of a value of sizes `whole`."""
    return random.uniform(key, shape, whole or shape, offsets or [0] * len(shape), world.device)


def randn(
    shape: Sequence[int], key: random.Key, whole: Sequence[int] | None = None, offsets: Sequence[int] | None = None
) -> Tensor:
    """float32 [*shape], normal of mean 0 and variance 1, likewise."""
    return random.normal(key, shape, whole or shape, offsets or [0] * len(shape), world.device)


def top_k(x: Tensor, k: int, dim: int) -> Tensor:
    """The indices of the k greatest values along `dim`, the greatest and of equal ones the first
    before others."""
    return x.sort(dim=dim, descending=True, stable=True).indices.narrow(dim, 0, k)
