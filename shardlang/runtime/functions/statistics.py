"""Sums and maxima over several groups at once, and functions that reduce over a dim which lies
split over ranks.

A group may be a tuple of groups (a reduction over several split dims); None is this rank alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime import random
from shardlang.runtime.comm import collectives
from shardlang.runtime.comm.mesh import Group

__all__ = ["amax", "amin", "argmax", "auc", "count", "logsumexp", "tally", "var"]

Groups = Group | tuple[Group, ...] | None
Dims = int | tuple[int, ...]


def listed(group: Groups) -> tuple[Group, ...]:
    """The groups to reduce over, one after the other."""
    return () if group is None else group if isinstance(group, tuple) else (group,)


def _over(reduce: Callable[[Tensor, Group], Tensor], x: Tensor, group: Groups) -> Tensor:
    """A reduction over the groups, without gradient."""
    x = x.detach()
    for each in listed(group):
        x = reduce(x, each)
    return x


summed = partial(_over, collectives.all_reduce)
greatest, least = partial(_over, collectives.all_reduce_max), partial(_over, collectives.all_reduce_min)


def count(mask: Tensor, group: Groups = None) -> Tensor:
    """i64 []: how many items of the whole are true in `mask`; no gradient (0 gives NaN)."""
    return summed(mask.sum(), group)


def extreme(x: Tensor, dims: tuple[int, ...], low: bool = False) -> Tensor:
    """The local extreme over `dims`, kept as dims of 1; an empty shard gives one that loses."""
    if all(x.shape[d] for d in dims):
        return x.amin(dims, keepdim=True) if low else x.amax(dims, keepdim=True)
    shape = [1 if d in dims else size for d, size in enumerate(x.shape)]
    if x.is_floating_point():
        return x.new_full(shape, float("inf") if low else float("-inf"))
    limits = torch.iinfo(x.dtype)
    return x.new_full(shape, limits.max if low else limits.min)


def _all_dims(x: Tensor, dims: Dims) -> tuple[int, ...]:
    chosen = (dims,) if isinstance(dims, int) else tuple(dims)
    return chosen or tuple(range(x.dim()))


class _LogSumExp(Function):
    """Over dims that are split: the greatest value and a sum are exchanged, forward alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], group: Groups) -> Tensor:
        top = greatest(extreme(x, dims), group)
        top = top.masked_fill(top.abs() == torch.inf, 0.0)
        result = top + summed(torch.exp(x - top).sum(dims, keepdim=True), group).log()
        ctx.save_for_backward(x, result)
        return result.squeeze(dims)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, result = ctx.saved_tensors
        return gradient.view(result.shape) * torch.exp(x - result), None, None


class _Variance(Function):
    """Over dims that are split, of `size` elements in the whole: sums are exchanged, of x and then
    of its squared distances from the mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], group: Groups, size: int, correction: int) -> Tensor:
        mean = summed(x.sum(dims, keepdim=True), group) / size
        ctx.save_for_backward(x, mean)
        ctx.count = size - correction
        return summed((x - mean).square().sum(dims), group) / ctx.count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, mean = ctx.saved_tensors
        return gradient.view(mean.shape) * (x - mean) * (2.0 / ctx.count), None, None, None, None


def logsumexp(x: Tensor, dims: tuple[int, ...], group: Groups) -> Tensor:
    """The logarithm of the sum of exp(x) over dims that the group shares."""
    return _LogSumExp.apply(x, dims, group)


def var(x: Tensor, dims: tuple[int, ...], group: Groups, size: int, correction: int = 1) -> Tensor:
    """The variance over dims that the group shares, of `size` elements in the whole."""
    return _Variance.apply(x, dims, group, size, correction)


class _Extremum(Function):
    """amax or amin over dims that are split: equal extremes share the gradient everywhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], group: Groups, low: bool) -> Tensor:
        local = extreme(x, dims, low)
        found = least(local, group) if low else greatest(local, group)
        ties = x == found
        ctx.save_for_backward(ties, summed(ties.sum(dims, keepdim=True).to(x.dtype), group))
        ctx.dims = dims
        return found.squeeze(dims)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        ties, number = ctx.saved_tensors
        for dim in sorted(ctx.dims):
            gradient = gradient.unsqueeze(dim)
        return ties * (gradient / number), None, None, None


def amax(x: Tensor, dims: Dims, group: Groups = None) -> Tensor:
    """The greatest value over `dims` (() for all), which lie split over the group."""
    return _Extremum.apply(x, _all_dims(x, dims), group, False)


def amin(x: Tensor, dims: Dims, group: Groups = None) -> Tensor:
    """The least value over `dims` (() for all), which lie split over the group."""
    return _Extremum.apply(x, _all_dims(x, dims), group, True)


def argmax(x: Tensor, dim: int, group: Groups = None, start: int = 0) -> Tensor:
    """i64: the index in the whole of the first greatest value along `dim`; `start`: the shard's.
    Truth values: that of the first true one; 0 where none is."""
    x = x.detach()
    x = x.to(torch.uint8) if x.dtype == torch.bool else x
    best = greatest(extreme(x, (dim,)), group)
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    places = random.places(start, x.shape[dim], x.device).view(shape)
    # A NaN is the greatest, as in torch, and equals nothing.
    found = torch.where((x == best) | x.isnan(), places, torch.iinfo(torch.int64).max)
    return least(extreme(found, (dim,), low=True).squeeze(dim), group)


def tally(
    items: Tensor, dim: int | None = None, start: int = 0, rows: int | None = None, mask: Tensor | None = None,
    once: bool = True,
) -> Tensor:  # fmt: skip
    """float64 [2]: the sum of this rank's items and their number.

    Only the first `rows` of the whole along `dim` count (the rest is padding; this rank's begin at
    `start`), and only where `mask`, of the items' shape, is true. `once` is False on a rank whose
    items are counted on another."""
    items = items.detach().to(torch.float64)
    if dim is not None and rows is not None:
        real = min(max(rows - start, 0), items.shape[dim])
        items = items.narrow(dim, 0, real)
        mask = None if mask is None else mask.narrow(dim, 0, real)
    number = items.new_full((), items.numel()) if mask is None else mask.sum().to(torch.float64)
    total = items.sum() if mask is None else items.where(mask, 0.0).sum()
    return torch.stack((total, number if once else torch.zeros_like(number)))


def auc(scores: Tensor, label: Tensor) -> Tensor:
    """f32 [] (f64 of scores in f64): the share of pairs of one example labelled 1 and one labelled
    0 in which the first has the greater score, equal scores counted half (Mann and Whitney, 1947).
    NaN where all labels are alike."""
    scores, chosen = scores.detach().reshape(-1), label.reshape(-1) != 0
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    # Equal scores share the mean of their ranks, from 1.
    ranks = counts.cumsum(0).double() - (counts.double() - 1.0) / 2.0
    ones = chosen.sum().double()
    above = ranks[place][chosen].sum() - ones * (ones + 1.0) / 2.0
    area = above / (ones * (len(scores) - ones))
    return area if scores.dtype == torch.float64 else area.float()
