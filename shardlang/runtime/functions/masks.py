"""Elements that fall out in training, by counter-based random bits of their own.

Which elements of a value are kept is a pure function of a key (random.py) and their place in the
whole value, so neither the layout nor the number of ranks decides it, and CPU and CUDA agree. Two
neighbours of a row share a word of 64 bits, 32 for each. Its bits are Doug Lea's mixing function
(Steele and Vigna, LXM: better splittable pseudorandom number generators, 2021) but for the last
step, of key + number of the word * golden ratio in 32 bits. That takes the fewest kernels, since a
shift by 32 is a view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime import random

__all__ = ["dropout", "dropout2d"]

_STEP = random.GOLDEN >> 32
_MIX = 0xDABA0B6EB09322E3
_KEY = (1 << 62) - 1  # so that counters of all but huge values stay below 2^63
_HALF = (1 << 32) - 1


def _line(start: int, size: int, step: int, device: torch.device | str | None) -> Tensor:
    """i64 [size]: start, start + step, ..., modulo 2^64; one kernel where none passes 2^63."""
    if step > 0 and start + step * size < 1 << 63:
        return torch.arange(start, start + step * size, step, device=device)
    return torch.arange(size, device=device).mul_(random.signed(step)).add_(random.signed(start))


def _counters(
    key: int, shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int | Tensor],
    device: torch.device | str | None,
) -> Tensor:  # fmt: skip
    """i64 [*shape]: key + step * index in `whole`, of each word of a block."""
    start, lines = key & _KEY, []
    for size, stride, offset in random.joined(shape, whole, offsets):
        assert isinstance(offset, int)
        start += _STEP * stride * offset
        lines += [(size, _STEP * stride)] * (size != 1)
    size, step = lines[0] if lines else (1, 0)
    found = _line(start, size, step, device)
    for size, step in lines[1:]:
        found = found.unsqueeze(-1) + _line(0, size, step, device)
    return found.view(tuple(shape))


def _mix(x: Tensor) -> None:
    """Mixes i64 [..., words] in place. Words lie with their lower half first."""
    halves = x.view(torch.int32)
    low, high = halves[..., ::2], halves[..., 1::2]
    for _ in range(2):
        low.bitwise_xor_(high)
        x.mul_(random.signed(_MIX))


def _drawn(
    key: Tensor, shape: Sequence[int], words: Sequence[int], offsets: Sequence[int | Tensor],
    device: torch.device | str | None,
) -> Tensor:  # fmt: skip
    """i64 [*shape]: the 32 bits of each element, with signs, as compiled code makes them: each by
    itself, in one kernel. words: the sizes of the whole, of which a row's last is in words."""
    step, first = (key[1] >> 32) & _HALF, offsets[-1]
    rows = random.multiples(step, (*shape[:-1], 1), words, (*offsets[:-1], first // 2), device)
    last = random.places(first % 2, shape[-1], device)
    x = rows + (last >> 1) * step + (key[0] & _KEY)
    for _ in range(2):
        x = (x ^ ((x >> 32) & _HALF)) * random.signed(_MIX)
    return torch.where((last & 1) == 0, x << 32, x) >> 32


def kept(
    key: random.Key, p: float, shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int | Tensor],
    device: torch.device | str | None = None,
) -> Tensor:  # fmt: skip
    """bool [*shape]: False with probability p, above 0 and less than 1, to 2^-32, for the block at
    `offsets` of `whole`."""
    if not shape:
        return kept(key, p, (1,), (1,), (0,), device).view(())
    least = math.ceil(p * 2**32) - 2**31  # of 32 bits with a sign
    words = (*whole[:-1], -(-whole[-1] // 2))
    if isinstance(key, Tensor):
        return _drawn(key, shape, words, offsets, device) >= least
    *lead, first = offsets
    assert isinstance(first, int)
    begin, end = first // 2, -(-(first + shape[-1]) // 2)
    x = _counters(key, (*shape[:-1], end - begin), words, (*lead, begin), device)
    for part in x.view(-1).split(random.CHUNK) if x.is_cpu and x.numel() > random.CHUNK else (x,):
        _mix(part)
    return x.view(torch.int32).narrow(-1, first - 2 * begin, shape[-1]) > least - 1


# x * mask * scale, by one kernel on a GPU: what torch's own dropout is in backward.
_applied = torch.ops.aten.native_dropout_backward.default


class _Masked(Function):
    """x times `scale` where `mask` is true, else 0. Backward keeps a byte of each element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return _applied(x, mask, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return _applied(gradient, mask, ctx.scale), None, None


def _masked(
    x: Tensor, p: float, key: int, shape: Sequence[int], whole: Sequence[int], offsets: Sequence[int]
) -> Tensor:
    if p == 0:
        return x
    mask = kept(key, p, shape, whole, offsets, x.device)
    return _Masked.apply(x, mask.view(*shape, *[1] * (x.dim() - len(shape))), 1.0 / (1.0 - p))


def dropout(
    x: Tensor, p: float, key: int, whole: Sequence[int] | None = None, offsets: Sequence[int] | None = None
) -> Tensor:
    """Elements 0 with probability p, others over 1 - p. x is the block at `offsets` of `whole`."""
    return _masked(x, p, key, x.shape, whole or x.shape, offsets or [0] * x.dim())


def dropout2d(
    x: Tensor, p: float, key: int, whole: Sequence[int] | None = None, offsets: Sequence[int] | None = None
) -> Tensor:
    """As `dropout` for whole channels of x [batch, channels, height, width]."""
    return _masked(x, p, key, x.shape[:2], (whole or x.shape)[:2], (offsets or [0] * x.dim())[:2])
