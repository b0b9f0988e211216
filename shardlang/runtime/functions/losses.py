"""Losses over a class dim that lies split: cross_entropy reduces its statistics, nll_loss picks
what the rank has.

The count of items and the division by it stand in the emitted program."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.functions import lookups
from shardlang.runtime.functions.statistics import Groups, extreme, greatest, summed


class _CrossEntropy(Function):
    """Items [*label]: log of the sum of exp, less the picked score, less the smoothing's share."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, label: Tensor, dim: int, group: Groups, start: int, classes: int,
                ignore_index: int | None, smoothing: float) -> Tensor:
        place, here = lookups.located(label.unsqueeze(dim).long(), start, scores.shape[dim])
        shifted = scores - greatest(extreme(scores, (dim,)), group)
        shares = shifted.exp()
        picked = lookups.picked(shifted, dim, place, here)
        parts = [shares.sum(dim, keepdim=True), picked]
        if smoothing:
            parts.append(shifted.sum(dim, keepdim=True))
        total, picked, *level = summed(torch.stack(parts), group).unbind()
        items = total.log() - (1.0 - smoothing) * picked
        if smoothing:
            items = items - smoothing / classes * level[0]
        kept = None if ignore_index is None else (label != ignore_index).unsqueeze(dim)
        ctx.save_for_backward(shares.div_(total), place, here, *([] if kept is None else [kept]))
        ctx.dim, ctx.smoothing, ctx.classes = dim, smoothing, classes
        return (items if kept is None else items.where(kept, 0.0)).squeeze(dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shares, place, here, *kept = ctx.saved_tensors
        gradient = gradient.unsqueeze(ctx.dim)
        if kept:
            gradient = gradient.where(kept[0], 0.0)
        result = shares * gradient
        if ctx.smoothing:
            result -= ctx.smoothing / ctx.classes * gradient
        if result.shape[ctx.dim]:
            result.scatter_add_(ctx.dim, place, ((ctx.smoothing - 1.0) * gradient).where(here, 0.0))
        return (result, *[None] * 7)


def cross_entropy(
    scores: Tensor, label: Tensor, dim: int, group: Groups = None, start: int = 0, classes: int = 0,
    ignore_index: int | None = None, label_smoothing: float = 0.0, reduction: str = "sum",
) -> Tensor:  # fmt: skip
    """Cross-entropy of scores whose classes, along `dim`, lie split over the group; this rank's
    begin at `start`.

    The same on all ranks of the group. `classes` in the whole matters to smoothing alone.
    reduction: "sum" or "none"."""
    items = _CrossEntropy.apply(scores, label, dim, group, start, classes, ignore_index, label_smoothing)
    return items if reduction == "none" else items.sum()


def nll_loss(
    scores: Tensor, label: Tensor, dim: int, group: Groups = None, start: int = 0, ignore_index: int | None = None,
    reduction: str = "sum",
) -> Tensor:  # fmt: skip
    """Less the local log-probabilities of the labels' classes: pending over the group."""
    place, here = lookups.located(label.unsqueeze(dim).long(), start, scores.shape[dim])
    if ignore_index is not None:
        here = here & (label != ignore_index).unsqueeze(dim)
    items = -lookups.picked(scores, dim, place, here).squeeze(dim)
    return items if reduction == "none" else items.sum()
