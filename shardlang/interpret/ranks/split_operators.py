"""The work of operators on parts: their meaning on ranks that hold shards, where it is not the operator on each shard.

Means divide by the count of the whole, lookups know where their part begins, and what reduces a split dim within the
operator exchanges its statistics, each by a row of the conversion table: what unsplit work reads is P -> I, what split
work reads P -> R. Backward follows from the exchanges' duals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shardlang.interpret.meaning.call import Call, computed, settled
from shardlang.interpret.meaning.lookups import place
from shardlang.interpret.meaning.operators import OPERATORS, factors_of
from shardlang.interpret.meaning.statistics import affine, kept_labels, logit_entropies, others, squared_errors
from shardlang.interpret.ranks import exchanges
from shardlang.interpret.ranks.coordinates import Coordinates
from shardlang.ops.rule import DimFactors

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Split:
    """An operator on all ranks. call: on the whole. axes: per factor, the axes that split it. given: factor -> the
    sizes of its parts, where they are given."""

    call: Call
    axes: tuple[tuple[str, ...], ...]
    coordinates: Coordinates
    given: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The operator as each rank computes it."""
        return tuple(self._call(rank) for rank in range(len(self.coordinates.at)))

    def _call(self, rank: int) -> Call:
        factors = self.call.rule.factors
        pairs = enumerate(zip(factors, self.axes, strict=True))
        parts = [self.coordinates.part(rank, f.size, axes, self.given.get(i)) for i, (f, axes) in pairs]
        return replace(self.call, sizes=tuple(size for _, size in parts), starts=tuple(start for start, _ in parts))

    def over(self, dims: Iterable[DimFactors]) -> tuple[str, ...]:
        """The axes that split the factors of some tensor dims."""
        return tuple(axis for f in factors_of(tuple(dims)) for axis in self.axes[f])

    def count(self, dims: Iterable[DimFactors]) -> int:
        """How many elements some tensor dims have in the whole."""
        return math.prod(self.call.whole(tuple(dims)))

    def sum_identical(self, xs: Tensors, axes: Sequence[str]) -> list[Tensor]:
        return exchanges.sum_identical(xs, axes, self.coordinates)

    def sum_replicated(self, xs: Tensors, axes: Sequence[str]) -> list[Tensor]:
        return exchanges.sum_replicated(xs, axes, self.coordinates)

    def extreme(self, xs: Tensors, axes: Sequence[str], low: bool = False) -> list[Tensor]:
        return exchanges.extreme(xs, axes, self.coordinates, low)


Function = Callable[..., list[Tensor]]


def on_ranks(split: Split, operands: Sequence[Tensors]) -> list[Tensor]:
    """The operator's result on every rank; `operands[i][rank]` are the local operands."""
    special = PARTS.get(split.call.operator)
    given = _by_rank(split, operands)
    if special is None:
        return [computed(OPERATORS, call, local) for call, local in zip(split.calls, given, strict=True)]
    made = special(split, *operands)
    return [settled(x, local, split.call.dtypes[0]) for x, local in zip(made, given, strict=True)]


def _by_rank(split: Split, operands: Sequence[Tensors]) -> list[tuple[Tensor, ...]]:
    return [tuple(x[rank] for x in operands) for rank in range(len(split.coordinates.at))]


# --- reductions ---


def _mean(split: Split, xs: Tensors) -> list[Tensor]:
    dims, operand = split.call.attrs["dims"], split.call.rule.operands[0]
    count, dtype = split.count(operand[d] for d in dims), split.call.dtypes[0]
    return [x.to(dtype).sum(dims) / count if dims else x.to(dtype) * 1 for x in xs]


def local_extreme(x: Tensor, dims: Sequence[int], low: bool) -> Tensor:
    """The greatest (least) local value over `dims`, kept as dims of 1; of no elements one that any other beats."""
    if any(x.shape[d] == 0 for d in dims):
        shape = [1 if d in dims else size for d, size in enumerate(x.shape)]
        if x.is_floating_point():
            return x.new_full(shape, math.inf if low else -math.inf)
        limits = torch.iinfo(x.dtype)
        return x.new_full(shape, limits.max if low else limits.min)
    return x.amin(tuple(dims), keepdim=True) if low else x.amax(tuple(dims), keepdim=True)


class _Valued(torch.autograd.Function):
    """The second tensor, with the gradient of the first: also where the first is infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _extreme(low: bool) -> Function:
    """Gradients reach every element that equals the extreme alike, through the mean of those; the value is exact."""

    def extreme(split: Split, xs: Tensors) -> list[Tensor]:
        dims = split.call.attrs["dims"]
        if not dims:
            return [x * 1 for x in xs]
        axes = split.over(split.call.rule.operands[0][d] for d in dims)
        best = split.extreme([local_extreme(x.detach(), dims, low) for x in xs], axes, low)
        ties = [(x.detach() == b) for x, b in zip(xs, best, strict=True)]
        number = split.sum_identical([t.sum(dims) for t in ties], axes)
        mine = [torch.where(t, x, 0).sum(dims) for x, t in zip(xs, ties, strict=True)]
        means = [x / n for x, n in zip(split.sum_identical(mine, axes), number, strict=True)]
        return [_Valued.apply(m, b.squeeze(dims)) for b, m in zip(best, means, strict=True)]

    return extreme


def _argmax(split: Split, xs: Tensors) -> list[Tensor]:
    (dim,) = split.call.attrs["dims"]
    factors = split.call.rule.operands[0][dim]
    axes = split.over([factors])
    best = split.extreme([local_extreme(x, (dim,), False) for x in xs], axes)
    firsts = []
    for x, b, call in zip(xs, best, split.calls, strict=True):
        shape = [-1 if d == dim else 1 for d in range(x.dim())]
        numbers = torch.arange(call.start(factors), call.start(factors) + x.shape[dim]).reshape(shape)
        found = torch.where(x == b, numbers, torch.iinfo(torch.int64).max)
        firsts.append(local_extreme(found, (dim,), True).squeeze(dim))
    return split.extreme(firsts, axes, low=True)


# --- softmax, normalisations ---


def _shares(split: Split, xs: Tensors) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """x less the greatest, its exponential, and the sum of that over all, along the dim of the softmax."""
    dim = split.call.attrs["dim"]
    axes = split.over([split.call.rule.operands[0][dim]])
    best = split.extreme([local_extreme(x.detach(), (dim,), False) for x in xs], axes)
    shifted = [x - b for x, b in zip(xs, best, strict=True)]
    shares = [torch.exp(x) for x in shifted]
    return shifted, shares, split.sum_replicated([x.sum(dim, keepdim=True) for x in shares], axes)


def _softmax(split: Split, xs: Tensors) -> list[Tensor]:
    _, shares, sums = _shares(split, xs)
    return [x / s for x, s in zip(shares, sums, strict=True)]


def _log_softmax(split: Split, xs: Tensors) -> list[Tensor]:
    shifted, _, sums = _shares(split, xs)
    return [x - torch.log(s) for x, s in zip(shifted, sums, strict=True)]


def _means(split: Split, xs: Tensors, dims: Sequence[int]) -> list[Tensor]:
    """The mean over `dims` of the whole, for work that is split as x is."""
    operand = [split.call.rule.operands[0][d] for d in dims]
    sums = split.sum_replicated([x.sum(tuple(dims), keepdim=True) for x in xs], split.over(operand))
    return [s / split.count(operand) for s in sums]


def _normalised(split: Split, xs: Tensors, dims: Sequence[int]) -> list[Tensor]:
    variance = _means(split, [x.square() for x in xs], dims)
    return [x / torch.sqrt(v + split.call.attrs["eps"]) for x, v in zip(xs, variance, strict=True)]


def _centred(split: Split, xs: Tensors, dims: Sequence[int]) -> list[Tensor]:
    return [x - m for x, m in zip(xs, _means(split, xs, dims), strict=True)]


def _layer_norm(split: Split, xs: Tensors, *given: Tensors) -> list[Tensor]:
    dims = split.call.attrs["dims"]
    return _affine(split, _normalised(split, _centred(split, xs, dims), dims), dims, given)


def _rms_norm(split: Split, xs: Tensors, *given: Tensors) -> list[Tensor]:
    dims = split.call.attrs["dims"]
    return _affine(split, _normalised(split, xs, dims), dims, given)


def _affine(split: Split, xs: Tensors, dims: Sequence[int], given: Sequence[Tensors]) -> list[Tensor]:
    has = split.call.attrs["has"]
    return [affine(x, dims, has, [g[rank] for g in given]) for rank, x in enumerate(xs)]


def _batch_norm(split: Split, xs: Tensors, mean: Tensors, variance: Tensors, *given: Tensors) -> list[Tensor]:
    if not split.call.run.training:
        local = zip(split.calls, xs, mean, variance, *given, strict=True)
        return [OPERATORS["batch_norm"](*arguments) for arguments in local]
    dims = others(split.call, xs[0])
    normal = _normalised(split, _centred(split, xs, dims), dims)
    return _affine(split, normal, (split.call.attrs["dim"],), given)


def moved_statistics(split: Split, xs: Tensors, mean: Tensors, variance: Tensors) -> tuple[list[Tensor], list[Tensor]]:
    """The running statistics on every rank after a batch, from the statistics of the whole."""
    dims, momentum = others(split.call, xs[0]), split.call.attrs["momentum"]
    xs = [x.detach() for x in xs]
    count = split.count(split.call.rule.operands[0][d] for d in dims)
    fresh = [m.flatten() for m in _means(split, xs, dims)]
    squares = [x.square() for x in _centred(split, xs, dims)]
    spread = [v.flatten() * (count / max(count - 1, 1)) for v in _means(split, squares, dims)]
    return (
        [(1 - momentum) * old + momentum * new for old, new in zip(mean, fresh, strict=True)],
        [(1 - momentum) * old + momentum * new for old, new in zip(variance, spread, strict=True)],
    )


# --- losses ---


def _kept_count(split: Split, labels: Tensors) -> list[Tensor]:
    """How many labels of the whole are not ignored."""
    axes = split.over(split.call.rule.operands[1])
    return split.sum_identical([kept_labels(split.call, label)[1].sum() for label in labels], axes)


def _picked(split: Split, xs: Tensors, labels: Tensors) -> list[Tensor]:
    """Per item the score of its label where a rank has that class, else 0."""
    dim = split.call.attrs["dim"]
    found = []
    for x, label, call in zip(xs, labels, split.calls, strict=True):
        label, _ = kept_labels(call, label)
        local, here = place(label.unsqueeze(dim), call.start(call.rule.operands[0][dim]), x.shape[dim])
        none = not x.shape[dim]
        picked = x.sum() * x.new_zeros(local.shape) if none else torch.where(here, x.gather(dim, local), 0.0)
        found.append(picked.squeeze(dim))
    return found


def _averaged(split: Split, items: Tensors, labels: Tensors, counts: Tensors | None) -> list[Tensor]:
    """The sum of the local items that are kept over the count of the whole (given, where it must be known ahead):
    pending over what splits the items."""
    found = []
    counts = _kept_count(split, labels) if counts is None else counts
    for x, label, count in zip(items, labels, counts, strict=True):
        found.append(torch.where(kept_labels(split.call, label)[1], x, 0.0).sum() / count)
    return found


def _cross_entropy(split: Split, xs: Tensors, labels: Tensors, counts: Tensors | None = None) -> list[Tensor]:
    dim, smoothing = split.call.attrs["dim"], split.call.attrs["label_smoothing"]
    classes = split.call.rule.operands[0][dim]
    axes = split.over([classes])
    best = split.extreme([local_extreme(x.detach(), (dim,), False) for x in xs], axes)
    shifted = [x - b for x, b in zip(xs, best, strict=True)]
    sums = split.sum_identical([torch.exp(x).sum(dim) for x in shifted], axes)
    picked = split.sum_identical(_picked(split, shifted, labels), axes)
    items = [torch.log(s) - (1.0 - smoothing) * p for s, p in zip(sums, picked, strict=True)]
    if smoothing:  # 0 times a score that is -inf would be NaN
        level = split.sum_identical([x.sum(dim) for x in shifted], axes)
        items = [x - smoothing / split.count([classes]) * m for x, m in zip(items, level, strict=True)]
    return _averaged(split, items, labels, counts)


def _nll_loss(split: Split, xs: Tensors, labels: Tensors, counts: Tensors | None = None) -> list[Tensor]:
    return _averaged(split, [-p for p in _picked(split, xs, labels)], labels, counts)


def _mean_of(items: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """The sum of local items over the count of the whole."""

    def mean(split: Split, xs: Tensors, targets: Tensors) -> list[Tensor]:
        count = split.count(split.call.rule.operands[0])
        return [items(x, target).sum() / count for x, target in zip(xs, targets, strict=True)]

    return mean


# --- lookups ---


def _embedding(split: Split, ids: Tensors, tables: Tensors) -> list[Tensor]:
    """Where the rows are split over axes that split the ids too, each rank reads its ids' rows wherever they are, and
    their gradients go back there.
    """
    rows = split.call.rule.operands[1][0]
    if not set(split.over([rows])) & set(split.over(split.call.rule.operands[0])):
        return [OPERATORS["embedding"](*local) for local in zip(split.calls, ids, tables, strict=True)]
    there = exchanges.gathered_for_split(tables, 0, split.over([rows]), split.coordinates, split.given.get(rows[0]))
    return [table[x.long()] for table, x in zip(there, ids, strict=True)]


# --- products ---


def _conv2d(split: Split, xs: Tensors, weights: Tensors, bias: Tensors | None = None) -> list[Tensor]:
    """Where input channels are split the result is pending, and the bias (R there) joins that sum on one rank."""
    axes = split.over([split.call.rule.operands[0][1]])
    if bias is not None and axes:
        bias = exchanges.exchange(bias, split.coordinates.groups(axes), exchanges.kept_first, exchanges.kept_first)
    operands = (xs, weights) if bias is None else (xs, weights, bias)
    return [OPERATORS["conv2d"](*local) for local in zip(split.calls, *operands, strict=True)]


PARTS: dict[str, Function] = {
    "mean": _mean,
    "amax": _extreme(False),
    "amin": _extreme(True),
    "argmax": _argmax,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "batch_norm": _batch_norm,
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
    "mse_loss": _mean_of(squared_errors),
    "bce_with_logits": _mean_of(logit_entropies),
    "conv2d": _conv2d,
    "embedding": _embedding,
}
