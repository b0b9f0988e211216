"""Convolution and pooling of a part of the channels that may be none at all, which torch's own do
not take.

A missing channel counts as one of zeros, and what comes of it is cut off again: so shapes, sums and
the graph that gradients go back through are what they are elsewhere."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor


def _channel(x: Tensor, dim: int) -> Tensor:
    """x with one place of zeros more along `dim`."""
    return F.pad(x, [0, 0] * (x.dim() - 1 - dim) + [0, 1])


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    """x [batch, in, height, width], weight [out, in, kernel, kernel]; `in` or `out` may be 0."""
    if x.shape[1] == 0:
        x, weight = _channel(x, 1), _channel(weight, 1)
    if weight.shape[0] == 0:
        bias = None if bias is None else _channel(bias, 0)
        return F.conv2d(x, _channel(weight, 0), bias, **options)[:, :0]
    return F.conv2d(x, weight, bias, **options)


def max_pool2d(x: Tensor, kernel: Any, **options: Any) -> Tensor:
    """x [batch, channels, height, width]; `channels` may be 0 here."""
    return F.max_pool2d(x, kernel, **options) if x.shape[1] else F.max_pool2d(_channel(x, 1), kernel, **options)[:, :0]


def avg_pool2d(x: Tensor, kernel: Any, **options: Any) -> Tensor:
    """x [batch, channels, height, width]; `channels` may be 0 here."""
    return F.avg_pool2d(x, kernel, **options) if x.shape[1] else F.avg_pool2d(_channel(x, 1), kernel, **options)[:, :0]
