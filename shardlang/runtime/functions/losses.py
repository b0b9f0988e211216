"""Losses over a class dim that lies split: cross_entropy reduces its statistics, nll_loss picks
what the rank has.

The count of items and the division by it stand in the emitted program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from shardlang.frozen.records import dataclass
from shardlang.runtime.compiled import CompiledFunction
from shardlang.runtime.functions import lookups
from shardlang.runtime.functions.statistics import Groups, extreme, greatest, summed

__all__ = ["chunked_cross_entropy", "cross_entropy", "cross_entropy_in_f32", "nll_loss"]


@dataclass(frozen=True, slots=True)
class _Classes:
    """Where the classes of scores are, along `dim`, and how they count: see `cross_entropy`."""

    dim: int
    group: Groups = None
    start: int = 0
    number: int = 0
    ignore_index: int | None = None
    smoothing: float = 0.0

    def items(self, scores: Tensor, label: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Items [*label]: log of the sum of exp, less the picked score, less the smoothing's share;
        and what `slope` reads."""
        dim = self.dim
        place, here = lookups.located(label.unsqueeze(dim).long(), self.start, scores.shape[dim])
        wide = torch.promote_types(scores.dtype, torch.float32)
        shifted = scores - greatest(extreme(scores, (dim,)).to(wide), self.group)
        shares = shifted.exp()
        picked = lookups.picked(shifted, dim, place, here)
        parts = [shares.sum(dim, keepdim=True), picked]
        if self.smoothing:
            parts.append(shifted.sum(dim, keepdim=True))
        total, picked, *level = summed(torch.stack(parts), self.group).unbind()
        items = total.log() - (1.0 - self.smoothing) * picked
        if self.smoothing:
            items = items - self.smoothing / self.number * level[0]
        kept = () if self.ignore_index is None else ((label != self.ignore_index).unsqueeze(dim),)
        items = items.where(kept[0], 0.0) if kept else items
        return items.squeeze(dim), (shares.div_(total), place, here, *kept)

    def slope(self, gradient: Tensor, shares: Tensor, place: Tensor, here: Tensor, *kept: Tensor) -> Tensor:
        """The gradient of the scores, from that of the items."""
        gradient = gradient.unsqueeze(self.dim)
        if kept:
            gradient = gradient.where(kept[0], 0.0)
        result = shares * gradient
        if self.smoothing:
            result -= self.smoothing / self.number * gradient
        if result.shape[self.dim]:
            result.scatter_add_(self.dim, place, ((self.smoothing - 1.0) * gradient).where(here, 0.0))
        return result


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, label: Tensor, classes: _Classes) -> Tensor:
        items, kept = classes.items(scores, label)
        ctx.save_for_backward(*kept)
        ctx.classes, ctx.dtype = classes, scores.dtype
        return items

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.classes.slope(gradient, *ctx.saved_tensors).to(ctx.dtype), None, None


def cross_entropy(
    scores: Tensor, label: Tensor, dim: int, group: Groups = None, start: int = 0, classes: int = 0,
    ignore_index: int | None = None, label_smoothing: float = 0.0, reduction: str = "sum",
) -> Tensor:  # fmt: skip
    """Cross-entropy of scores whose classes, along `dim`, lie split over the group; this rank's
    begin at `start`.

    The same on all ranks of the group. `classes` in the whole matters to smoothing alone.
    reduction: "sum" or "none"."""
    items = _CrossEntropy.apply(scores, label, _Classes(dim, group, start, classes, ignore_index, label_smoothing))
    return items if reduction == "none" else items.sum()


@CompiledFunction
def cross_entropy_in_f32(scores: Tensor, label: Tensor, **options: Any) -> Tensor:
    """torch's cross_entropy of scores in 16 bits: it is computed in f32."""
    return F.cross_entropy(scores.float(), label, **options)


class _Chunked(Function):
    """The sum of the items. Forward computes the gradients of the three operands too, chunk by
    chunk, since nothing of a chunk is kept; that of the weight is added up in f32 at least."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, label: Tensor, chunks: int, classes: _Classes
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = hidden.new_zeros((), dtype=wide)
        trained = ctx.needs_input_grad[:3]
        totals = [torch.zeros_like(x, dtype=wide) if t and x is not None else None
                  for x, t in zip((weight, bias), trained[1:], strict=True)]  # fmt: skip
        slopes = hidden.new_empty((label.numel(), hidden.shape[-1]) if trained[0] else 0)
        first = 0
        for rows, labels in _in_chunks(hidden, label, chunks):
            items, kept = classes.items(F.linear(rows, weight, bias), labels)
            total += items.sum()
            slope = classes.slope(torch.ones_like(items), *kept).to(hidden.dtype)
            del kept
            if trained[0]:
                slopes[first : first + len(rows)] = slope @ weight
                first += len(rows)
            if totals[0] is not None:
                totals[0] += slope.t() @ rows
            if totals[1] is not None:
                totals[1] += slope.sum(0)
        made = [slopes.view(hidden.shape) if trained[0] else None,
                *(None if x is None else x.to(weight.dtype) for x in totals)]  # fmt: skip
        ctx.save_for_backward(*made)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if x is None else x * gradient for x in ctx.saved_tensors), None, None, None


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, label: Tensor, chunks: int, bias: Tensor | None = None, group: Groups = None,
    start: int = 0, classes: int = 0, ignore_index: int | None = None, label_smoothing: float = 0.0,
    reduction: str = "sum",
) -> Tensor:  # fmt: skip
    """cross_entropy of the scores hidden @ weight.T + bias, in chunks of rows: all of them are
    never there at once.

    hidden [*label, in], weight [classes, in], bias [classes]; the rest as there."""
    known = _Classes(1, group, start, classes, ignore_index, label_smoothing)
    if torch.is_grad_enabled() and reduction == "sum":
        return _Chunked.apply(hidden, weight, bias, label, chunks, known)
    pairs = _in_chunks(hidden.detach(), label, chunks)
    items = torch.cat([known.items(F.linear(rows, weight, bias), labels)[0] for rows, labels in pairs])
    return items.view(label.shape) if reduction == "none" else items.sum()


def _in_chunks(hidden: Tensor, label: Tensor, chunks: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of hidden with their labels, in so many parts on all ranks; some have no row where
    rows are fewer."""
    rows, labels = hidden.reshape(-1, hidden.shape[-1]), label.reshape(-1)
    yield from zip(rows.tensor_split(chunks), labels.tensor_split(chunks), strict=True)


def nll_loss(
    scores: Tensor, label: Tensor, dim: int, start: int = 0, ignore_index: int | None = None, reduction: str = "sum"
) -> Tensor:  # fmt: skip
    """Less the local log-probabilities of the labels' classes, of which the first here is `start`:
    pending over the ranks that have the others."""
    place, here = lookups.located(label.unsqueeze(dim).long(), start, scores.shape[dim])
    if ignore_index is not None:
        here = here & (label != ignore_index).unsqueeze(dim)
    items = -lookups.picked(scores, dim, place, here).squeeze(dim)
    return items if reduction == "none" else items.sum()
