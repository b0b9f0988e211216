"""Attention of some of a sequence's queries, or with keys left out; rotary positions from a place
on.

Attention of a whole sequence by as many heads of keys as of queries is torch's own call in the
emitted text. All other is computed here, in parts: causal attention of later queries by one kernel
for the keys before them, all of which are seen, and one for the square of both. No mask of all
pairs is made, and memory grows with the sequence, not with its square."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.as_it_is import as_it_is
from shardlang.runtime.device import kind_of
from shardlang.runtime.functions.attention_kernels import KERNELS, Kernel, Pair, Seen

# Keys from one place to another, and whether query i sees them only up to the i-th.
Part = tuple[int, int, bool]


def attention(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, causal: bool = False, scale: float | None = None,
    start: int = 0,
) -> Tensor:  # fmt: skip
    """[..., heads, queries, width]: q of the places from `start` on, k and v of all places of the
    sequence.

    Heads of q share those of k and v in groups. `keep` [..., keys] is false for keys that no query
    sees."""
    scale, end = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale, start + q.shape[-2]
    parts = ((0, start, False), (start, end, True)) if causal else ((0, k.shape[-2], False),)
    return of_four(_InParts, q, k, v, keep, scale, parts)


def of_four(function: type[Function], q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, *more: Any) -> Tensor:
    """`function` of these, which takes four dims and one width: zeros change no score."""
    lead, width, wide = q.shape[:-1], v.shape[-1], max(q.shape[-1], v.shape[-1])
    if q.dim() == 4 and q.shape[-1] == width:
        return function.apply(q, k, v, keep, *more)
    keep = None if keep is None else keep.reshape(-1, keep.shape[-1])
    result = function.apply(*(_of_four(x, wide) for x in (q, k, v)), keep, *more)
    return (result if wide == width else result[..., :width].contiguous()).reshape(*lead, width)


def _of_four(x: Tensor, width: int) -> Tensor:
    x = x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]) if x.dim() > 2 else x[None, None]
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


class _InParts(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float, parts: tuple[Part, ...]
    ) -> Tensor:
        kernel, found = kernel_for(q, keep), Merged(q)
        for at, seen in _given(q, keep, scale, parts):
            found.add(kernel.forward(q, k[:, :, at], v[:, :, at], seen))
        result, sums = found.whole(keep is not None)
        ctx.save_for_backward(q, k, v, keep, result, sums)
        ctx.scale, ctx.parts, ctx.kernel = scale, parts, kernel
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, *whole = ctx.saved_tensors
        given = list(_given(q, keep, ctx.scale, ctx.parts))
        if [at for at, _ in given] == [slice(0, k.shape[2])]:
            return *ctx.kernel.backward(gradient, q, k, v, whole, given[0][1]), None, None, None
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for at, seen in given:
            slopes = ctx.kernel.backward(gradient, q, k[:, :, at], v[:, :, at], whole, seen)
            for total, slope in zip((dq, dk[:, :, at], dv[:, :, at]), slopes, strict=True):
                total += slope
        return dq, dk, dv, None, None, None


def _given(q: Tensor, keep: Tensor | None, scale: float, parts: tuple[Part, ...]) -> Iterator[tuple[slice, Seen]]:
    """The keys of each part that has pairs, and how it sees them."""
    for start, end, causal in parts:
        if start < end and q.numel():
            yield slice(start, end), Seen(scale, causal, None if keep is None else hidden(keep[:, start:end], q.dtype))


def kernel_for(q: Tensor, keep: Tensor | None) -> Kernel:
    return KERNELS[kind_of(q.device).attention(q.dtype, keep is not None)]


def hidden(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers to add to scores, [batch, 1, 1, keys]: 0 for keys that are kept, else one so low
    that no softmax sees it beside another score. Infinity would make NaN of a query that sees no
    key."""
    return torch.zeros_like(keep, dtype=dtype).masked_fill_(~keep, torch.finfo(dtype).min / 2)[:, None, None, :]


class Merged:
    """The attention of q to all keys of some parts: their mean by weight."""

    def __init__(self, q: Tensor) -> None:
        self.q = q
        self.found: Pair | None = None

    def add(self, part: Pair) -> None:
        if self.found is None:
            self.found = part
            return
        both = torch.logaddexp(self.found[1], part[1])
        result = sum(result * torch.exp(sums - both).unsqueeze(-1) for result, sums in (self.found, part))
        self.found = result, both

    def whole(self, masked: bool) -> Pair:
        """Result and sums. A query that has seen no key has 0, and weighs 0 in backward."""
        if self.found is None:
            return torch.zeros_like(self.q), self.q.new_zeros(self.q.shape[:-1])
        result, sums = self.found
        if masked:
            blind = sums < torch.finfo(self.q.dtype).min / 4
            # In place: else the result would not lie in memory as the queries do.
            result, sums = result.masked_fill_(blind.unsqueeze(-1), 0.0), sums.masked_fill_(blind, torch.inf)
        return result.to(self.q.dtype), sums


@as_it_is
def _turned(
    size: int, start: int, width: int, base: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin [size, width / 2] of the angles of positions from `start`, in float64."""
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    places = torch.arange(start, start + size, dtype=torch.float64, device=device)
    angles = torch.outer(places, rates)
    return angles.cos().to(dtype), angles.sin().to(dtype)


_kept_turns = lru_cache(maxsize=16)(_turned)


def rotary(x: Tensor, over: int, along: int, base: float, start: int = 0) -> Tensor:
    """x with each pair (i, i + n/2) along dim `over` turned by the angle of its place along dim
    `along`, from `start`.

    Narrow types are turned in float32."""
    width, size = x.shape[over], x.shape[along]
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    # What is compiled keeps them as its constants.
    turns = _turned if torch.compiler.is_compiling() else _kept_turns
    tables = turns(size, start, width, base, wide.dtype, x.device)
    shape = [1] * x.dim()
    shape[along], shape[over] = size, width // 2
    cos, sin = (t.view(shape) if along < over else t.T.reshape(shape) for t in tables)
    left, right = wide.chunk(2, over)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), over).to(x.dtype)
