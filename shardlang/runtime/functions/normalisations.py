"""softmax, log_softmax, layer_norm, rms_norm and batch_norm over dims that lie split: only
statistics are reduced.

Each backward is written out: its all-reduces are the duals of the statistics', joined into one
where there are two."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.compiled import applied
from shardlang.runtime.functions.statistics import Groups, extreme, greatest, summed
from shardlang.runtime.step.recompute import Recomputing

__all__ = ["batch_norm", "batch_norm_eval", "layer_norm", "log_softmax", "rms_norm", "softmax"]

_LOW = (torch.bfloat16, torch.float16)


def widened(x: Tensor) -> Tensor:
    """x in the type in which sums over it are taken: f32 for what is narrower."""
    return x.float() if x.dtype in _LOW else x


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Groups) -> Tensor:
        shares = (widened(x) - greatest(extreme(x, (dim,)), group)).exp_()
        result = shares.div_(summed(shares.sum(dim, keepdim=True), group)).to(x.dtype)
        ctx.save_for_backward(result)
        ctx.dim, ctx.group = dim, group
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (result,) = ctx.saved_tensors
        weighted = widened(result) * gradient
        slope = weighted - result * summed(weighted.sum(ctx.dim, keepdim=True), ctx.group)
        return slope.to(result.dtype), None, None


class _LogSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Groups) -> Tensor:
        shifted = widened(x) - greatest(extreme(x, (dim,)), group)
        result = (shifted - summed(shifted.exp().sum(dim, keepdim=True), group).log_()).to(x.dtype)
        ctx.save_for_backward(result)
        ctx.dim, ctx.group = dim, group
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (result,) = ctx.saved_tensors
        gradient = widened(gradient)
        total = summed(gradient.sum(ctx.dim, keepdim=True), ctx.group)
        return (gradient - widened(result).exp() * total).to(result.dtype), None, None


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
        result, mean, variance, inverse = _normalised(x, dims, size, eps, group, centred)
        ctx.save_for_backward(result, inverse)
        ctx.dims, ctx.size, ctx.group, ctx.centred = dims, size, group, centred
        mean = variance if mean is None else mean
        ctx.mark_non_differentiable(mean, variance)
        return result, mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        result, inverse = ctx.saved_tensors
        return _slope(gradient, result, inverse, ctx), None, None, None, None, None


def _normalised(
    x: Tensor, dims: tuple[int, ...], size: int, eps: float, group: Groups, centred: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """x less its mean, over its deviation, with the mean, the variance and 1 over the deviation of
    each row."""
    mean = summed(x.sum(dims, keepdim=True), group) / size if centred else None
    result = x - mean if mean is not None else x
    variance = summed(result.square().sum(dims, keepdim=True), group) / size
    inverse = (variance + eps).rsqrt()
    return result * inverse, mean, variance, inverse


def _slope(gradient: Tensor, result: Tensor, inverse: Tensor, ctx: Any) -> Tensor:
    """The gradient of what was normalised."""
    slope = (gradient * result).sum(ctx.dims, keepdim=True)
    if not ctx.centred:
        slope = summed(slope, ctx.group) / ctx.size
        return (gradient - result * slope) * inverse
    both = torch.stack((gradient.sum(ctx.dims, keepdim=True), slope))
    level, slope = (summed(both, ctx.group) / ctx.size).unbind()
    return (gradient - level - result * slope) * inverse


class _LowNormalised(Function):
    """As _Normalised, then times weight, plus bias, for an x narrower than f32: all is computed in
    f32. x is kept as it is, beside statistics in f32."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: tuple[int, ...], size: int, eps: float,
        group: Groups, centred: bool,
    ) -> Tensor:  # fmt: skip
        result, mean, _, inverse = _normalised(x.float(), dims, size, eps, group, centred)
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.dims, ctx.size, ctx.group, ctx.centred = dims, size, group, centred
        ctx.bias = None if bias is None else bias.dtype
        return _affine(result, dims, weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        result = (x.float() if mean is None else x - mean) * inverse
        gradient, rows = gradient.float(), [d for d in range(x.dim()) if d not in ctx.dims]
        for_weight = None if weight is None else _over_rows(gradient * result, rows).to(weight.dtype)
        for_bias = None if ctx.bias is None else _over_rows(gradient, rows).to(ctx.bias)
        slope = _slope(_affine(gradient, ctx.dims, weight, None), result, inverse, ctx)
        return slope.to(x.dtype), for_weight, for_bias, None, None, None, None, None


def _over_rows(x: Tensor, rows: list[int]) -> Tensor:
    return x.sum(rows) if rows else x


def _norm(
    x: Tensor, dims: tuple[int, ...], size: int, weight: Tensor | None, bias: Tensor | None, eps: float, group: Groups,
    centred: bool,
) -> Tensor:  # fmt: skip
    """A norm. Torch's own for devices keeps and computes the same of an x narrower than f32; that
    for the CPU keeps more, or sums the gradient of the weight in the type of x."""
    if x.dtype not in _LOW:
        return _affine(_Normalised.apply(x, dims, size, eps, group, centred)[0], dims, weight, bias)
    last, shape = tuple(range(x.dim() - len(dims), x.dim())), [x.shape[d] for d in dims]
    alike = all(p is None or p.dtype == x.dtype for p in (weight, bias))
    if x.device.type == "cpu" or dims != last or group is not None or not alike:
        return applied(_LowNormalised, x, weight, bias, dims, size, eps, group, centred)
    return F.layer_norm(x, shape, weight, bias, eps) if centred else F.rms_norm(x, shape, weight, eps)


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
    return _norm(x, dims, size, weight=weight, bias=bias, eps=eps, group=group, centred=True)


def rms_norm(
    x: Tensor, dims: tuple[int, ...], size: int, weight: Tensor | None = None, eps: float = 1e-5,
    group: Groups = None,
) -> Tensor:  # fmt: skip
    """x over the root of its mean square along `dims` of `size` elements in the whole."""
    return _norm(x, dims, size, weight=weight, bias=None, eps=eps, group=group, centred=False)


def batch_norm(
    x: Tensor, dim: int, running_mean: Tensor, running_var: Tensor, weight: Tensor | None = None,
    bias: Tensor | None = None, size: int = 0, momentum: float = 0.1, eps: float = 1e-5, group: Groups = None,
) -> Tensor:  # fmt: skip
    """x normalised over all dims but `dim` by the statistics of the whole (`size` elements a
    channel).

    The running statistics move towards them by `momentum`, the variance as its unbiased estimate,
    alike on all ranks."""
    others = tuple(d for d in range(x.dim()) if d != dim)
    result, mean, variance = _Normalised.apply(widened(x), others, size, eps, group, True)
    whole = _affine(result, (dim,), weight, bias).to(x.dtype)
    if Recomputing.now:
        # This step has moved them already.
        return whole
    # `.data`: as in torch's own, autograd does not count the move, since no backward reads what
    # moves.
    running_mean.data.lerp_(mean.flatten(), momentum)
    running_var.data.lerp_(variance.flatten() * (size / max(size - 1, 1)), momentum)
    return whole


def batch_norm_eval(
    x: Tensor, dim: int, running_mean: Tensor, running_var: Tensor, weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """x normalised along `dim` by the running statistics, also where it has nothing there."""
    centred = _affine(x, (dim,), None, -running_mean)
    return _affine(_affine(centred, (dim,), (running_var + eps).rsqrt(), None), (dim,), weight, bias).to(x.dtype)
