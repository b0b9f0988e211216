"""Convolution, pooling and resampling of a part of the channels that may be none at all, which
torch's own do not take.

A missing channel counts as one of zeros, and what comes of it is cut off again: so shapes, sums and
the graph that gradients go back through are what they are elsewhere. Backward keeps what it keeps
elsewhere, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from shardlang.runtime.step.recompute import keeping

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "conv1d", "conv2d",
    "conv_transpose1d", "conv_transpose2d", "group_norm", "interpolate", "max_pool1d", "max_pool2d",
]  # fmt: skip


def _channel(x: Tensor, dim: int) -> Tensor:
    """x with one place of zeros more along `dim`."""
    return F.pad(x, [0, 0] * (x.dim() - 1 - dim) + [0, 1])


def _convolution(function: Callable[..., Tensor], out: int) -> Callable[..., Tensor]:
    """A convolution of x [batch, in, ...] by a weight whose channels out are dim `out`; channels in
    or out may be 0."""

    def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
        given = x, weight
        if x.shape[1] == 0:
            # With groups each channel is one of its own, and what it reads is not missing.
            x, weight = _channel(x, 1), weight if "groups" in options else _channel(weight, 1 - out)
            options |= {"groups": 1} if "groups" in options else {}
        if weight.shape[out] == 0:
            bias = None if bias is None else _channel(bias, 0)
            return keeping(function(x, _channel(weight, out), bias, **options)[:, :0], *given)
        made = function(x, weight, bias, **options)
        return made if x is given[0] else keeping(made, *given)

    return convolve


def _of_channels(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of each channel of x [batch, channels, ...]; `channels` may be 0 here."""

    def apply(x: Tensor, *given: Any, **options: Any) -> Tensor:
        if x.shape[1]:
            return function(x, *given, **options)
        return keeping(function(_channel(x, 1), *given, **options)[:, :0], x)

    return apply


conv1d = _convolution(F.conv1d, 0)
conv2d = _convolution(F.conv2d, 0)
conv_transpose1d = _convolution(F.conv_transpose1d, 1)
conv_transpose2d = _convolution(F.conv_transpose2d, 1)
max_pool1d = _of_channels(F.max_pool1d)
max_pool2d = _of_channels(F.max_pool2d)
avg_pool1d = _of_channels(F.avg_pool1d)
avg_pool2d = _of_channels(F.avg_pool2d)
adaptive_avg_pool1d = _of_channels(F.adaptive_avg_pool1d)
adaptive_avg_pool2d = _of_channels(F.adaptive_avg_pool2d)
interpolate = _of_channels(F.interpolate)


def group_norm(x: Tensor, each: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:  # fmt: skip
    """Groups of `each` of the channels of x [batch, channels, ...]; `channels` may be 0 here."""
    normal = F.group_norm(x, x.shape[1] // each, weight, eps=eps) if x.shape[1] else keeping(x * 1, x)
    alike = (x.shape[1], *[1] * (x.dim() - 2))
    if weight is not None and not x.shape[1]:
        normal = normal * weight.reshape(alike)
    return normal if bias is None else normal + bias.reshape(alike)
