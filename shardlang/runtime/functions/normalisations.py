"""softmax, log_softmax, layer_norm, rms_norm and batch_norm over dims that lie split: only
statistics are reduced.

Each backward is written out: its all-reduces are the duals of the statistics', joined into one
where there are two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.functions.statistics import Groups, extreme, greatest, summed
from shardlang.runtime.step.recompute import Recomputing


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Groups) -> Tensor:
        shares = (x - greatest(extreme(x, (dim,)), group)).exp_()
        result = shares.div_(summed(shares.sum(dim, keepdim=True), group))
        ctx.save_for_backward(result)
        ctx.dim, ctx.group = dim, group
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (result,) = ctx.saved_tensors
        weighted = result * gradient
        return weighted - result * summed(weighted.sum(ctx.dim, keepdim=True), ctx.group), None, None


class _LogSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Groups) -> Tensor:
        shifted = x - greatest(extreme(x, (dim,)), group)
        result = shifted - summed(shifted.exp().sum(dim, keepdim=True), group).log_()
        ctx.save_for_backward(result)
        ctx.dim, ctx.group = dim, group
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (result,) = ctx.saved_tensors
        total = summed(gradient.sum(ctx.dim, keepdim=True), ctx.group)
        return gradient - result.exp() * total, None, None


def softmax(x: Tensor, dim: int, group: Groups = None) -> Tensor:
    """exp(x) over its sum along `dim`, split over the group: a max and sums are exchanged."""
    return _Softmax.apply(x, dim, group)


def log_softmax(x: Tensor, dim: int, group: Groups = None) -> Tensor:
    """The logarithm of `softmax`, with as many reductions."""
    return _LogSoftmax.apply(x, dim, group)


class _Normalised(Function):
    """(x - mean) / sqrt(variance + eps) over dims of `size` elements in the whole; without
    `centred` the mean is 0.

    Mean and variance are reduced one after the other, since the difference of two large sums would
    lose the variance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...], size: int, eps: float, group: Groups, centred: bool) -> Any:
        mean = summed(x.sum(dims, keepdim=True), group) / size if centred else None
        result = x - mean if mean is not None else x
        variance = summed(result.square().sum(dims, keepdim=True), group) / size
        inverse = (variance + eps).rsqrt()
        result = result * inverse
        ctx.save_for_backward(result, inverse)
        ctx.dims, ctx.size, ctx.group, ctx.centred = dims, size, group, centred
        mean = variance if mean is None else mean
        ctx.mark_non_differentiable(mean, variance)
        return result, mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        result, inverse = ctx.saved_tensors
        slope = (gradient * result).sum(ctx.dims, keepdim=True)
        if not ctx.centred:
            slope = summed(slope, ctx.group) / ctx.size
            return (gradient - result * slope) * inverse, None, None, None, None, None
        both = torch.stack((gradient.sum(ctx.dims, keepdim=True), slope))
        level, slope = (summed(both, ctx.group) / ctx.size).unbind()
        return (gradient - level - result * slope) * inverse, None, None, None, None, None


def _affine(x: Tensor, dims: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x * weight + bias, whose dims are x's `dims` (ascending)."""
    shape = [x.shape[d] if d in dims else 1 for d in range(x.dim())]
    if weight is not None:
        x = x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def layer_norm(
    x: Tensor, dims: tuple[int, ...], size: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, group: Groups = None,
) -> Tensor:  # fmt: skip
    """x less its mean, over its deviation, along `dims` of `size` elements in all; cut alike."""
    result, _, _ = _Normalised.apply(x, dims, size, eps, group, True)
    return _affine(result, dims, weight, bias)


def rms_norm(
    x: Tensor, dims: tuple[int, ...], size: int, weight: Tensor | None = None, eps: float = 1e-5,
    group: Groups = None,
) -> Tensor:  # fmt: skip
    """x over the root of its mean square along `dims` of `size` elements in the whole."""
    result, _, _ = _Normalised.apply(x, dims, size, eps, group, False)
    return _affine(result, dims, weight, None)


def batch_norm(
    x: Tensor, dim: int, running_mean: Tensor, running_var: Tensor, weight: Tensor | None = None,
    bias: Tensor | None = None, size: int = 0, momentum: float = 0.1, eps: float = 1e-5, group: Groups = None,
) -> Tensor:  # fmt: skip
    """x normalised over all dims but `dim` by the statistics of the whole (`size` elements a
    channel).

    The running statistics move towards them by `momentum`, the variance as its unbiased estimate,
    alike on all ranks."""
    others = tuple(d for d in range(x.dim()) if d != dim)
    result, mean, variance = _Normalised.apply(x, others, size, eps, group, True)
    if Recomputing.now:
        # This step has moved them already.
        return _affine(result, (dim,), weight, bias)
    # `.data`: as in torch's own, autograd does not count the move, since no backward reads what
    # moves.
    running_mean.data.lerp_(mean.flatten(), momentum)
    running_var.data.lerp_(variance.flatten() * (size / max(size - 1, 1)), momentum)
    return _affine(result, (dim,), weight, bias)


def batch_norm_eval(
    x: Tensor, dim: int, running_mean: Tensor, running_var: Tensor, weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """x normalised along `dim` by the running statistics, also where it has nothing there."""
    centred = _affine(x, (dim,), None, -running_mean)
    return _affine(_affine(centred, (dim,), (running_var + eps).rsqrt(), None), (dim,), weight, bias)
