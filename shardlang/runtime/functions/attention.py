"""Attention of some of a sequence's queries, with keys left out, or with more than products in its
scores.

Attention of a whole sequence by as many heads of keys as of queries is torch's own call in the
emitted text, and by fewer where torch has a kernel for that. All other is computed here, in parts:
causal attention of later queries by one kernel for the keys before them, all of which are seen, and
one for the square of both. No mask of all pairs is made, and memory grows with the sequence, not
with its square."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime import random
from shardlang.runtime.compiled import applied
from shardlang.runtime.device import kind_of
from shardlang.runtime.functions.attention_kernels import KERNELS, AttentionScores, Kernel, Pair, joined, proportion
from shardlang.runtime.functions.attention_scores import SCORED, Scores, lined_up, slope_of_sinks, with_sinks

__all__ = ["attention"]

# Keys from one place to another, and whether query i sees them only up to the i-th.
Part = tuple[int, int, bool]


def attention(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, causal: bool = False, scale: float | None = None,
    start: int = 0, bias: Tensor | None = None, sinks: Tensor | None = None, **how: Any,
) -> Tensor:  # fmt: skip
    """[..., heads, queries, width]: q of the places from `start` on, k and v of all places of the
    sequence.

    Heads of q share those of k and v in groups. `keep` [..., keys] is false for keys that no query
    sees; `bias` is added to scores, and may have the rows of all queries; `sinks` [heads] are
    scores of a key without a value. how: as `scores_of` takes it."""
    if not how and all(x is None for x in (keep, bias, sinks)) and _is_torchs(q, k, v, causal):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)
    scale, end = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale, start + q.shape[-2]
    parts = ((0, start, False), (start, end, True)) if causal else ((0, k.shape[-2], False),)
    if bias is not None and bias.dim() > 1 and bias.shape[-2] > max(1, q.shape[-2]):
        bias = bias.narrow(-2, start, q.shape[-2])
    trained = bias is not None and (bias.requires_grad or keep is not None)
    scores = scores_of(q, k.shape[-2], causal, start, **how) if how or trained else None
    return of_four(_InParts, q, k, v, keep, bias, sinks, scale, parts, scores, start)


def _is_torchs(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """Whether torch has kernels for such tensors, whole sequences, with heads that share keys: on a
    GPU, in 16 bits. It knows the fastest of them."""
    whole = q.dim() == 4 and q.shape[-1] == v.shape[-1] and (q.shape[-2] == k.shape[-2] or not causal)
    return whole and q.element_size() == 2 and kind_of(q.device).attention(q.dtype) == "efficient"


def scores_of(
    q: Tensor, keys: int, causal: bool, first: int, window: int | None = None, softcap: float | None = None,
    p: float = 0.0, key: random.Key = 0, whole: Sequence[int] | None = None, offsets: Sequence[int] | None = None,
) -> Scores:  # fmt: skip
    """How scores are made besides products and masks. window: a query sees only keys of less than
    as many places away. softcap: scores s become softcap * tanh(s / softcap). p: the share of
    weights that falls out, by numbers of `key`; whole, offsets: sizes of all weights and where
    these begin in all dims but the last two. first: the place of the first row of a bias."""
    lead = tuple(q.shape[:-2])
    sizes = (*lead, q.shape[-2], keys) if whole is None else whole
    return Scores(
        causal, window, softcap, bias=None, first=first, p=p, key=key, whole=tuple(sizes), lead=lead,
        offsets=tuple(offsets or [0] * len(lead)),
    )  # fmt: skip


def of_four(
    function: type[Function], q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, *more: Any
) -> Tensor:
    """`function` of these, which takes four dims and one width: zeros change no score."""
    lead, width, wide = q.shape[:-1], v.shape[-1], max(q.shape[-1], v.shape[-1])
    bias = None if bias is None else lined_up(bias, q.shape[:-2])
    if q.dim() == 4 and q.shape[-1] == width:
        return applied(function, q, k, v, keep, bias, *more)
    keep = None if keep is None else keep.reshape(-1, keep.shape[-1])
    result = applied(function, *(_of_four(x, wide) for x in (q, k, v)), keep, bias, *more)
    return (result if wide == width else result[..., :width].contiguous()).reshape(*lead, width)


def _of_four(x: Tensor, width: int) -> Tensor:
    x = x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]) if x.dim() > 2 else x[None, None]
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


class _InParts(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, sinks: Tensor | None,
        scale: float, parts: tuple[Part, ...], scores: Scores | None, start: int,
    ) -> Tensor:  # fmt: skip
        ctx.scale, ctx.parts, ctx.scores, ctx.start = scale, parts, scores, start
        kernel, found = kernel_for(q, scores), Merged(q)
        for at, seen in _given(ctx, q, k, keep, bias):
            found.add(kernel.forward(q, k[:, :, at], v[:, :, at], seen))
        result, sums = with_sinks(found.whole(), sinks, bias is not None)
        ctx.save_for_backward(q, k, v, keep, bias, sinks, result, sums)
        ctx.kernel = kernel
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, bias, sinks, *whole = ctx.saved_tensors
        slope, given = slope_of(ctx, bias), list(_given(ctx, q, k, keep, bias))
        dsinks = slope_of_sinks(gradient, whole, sinks) if ctx.needs_input_grad[5] else None
        if [at for at, _ in given] == [slice(0, k.shape[2])]:
            slopes = ctx.kernel.backward(gradient, q, k, v, whole, sloping(given[0][1], slope))
            return *slopes, None, of_bias(slope, bias), dsinks, None, None, None, None
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for at, seen in given:
            slopes = ctx.kernel.backward(gradient, q, k[:, :, at], v[:, :, at], whole, seen)
            for total, part in zip((dq, dk[:, :, at], dv[:, :, at]), slopes, strict=True):
                total += part
        return dq, dk, dv, None, of_bias(slope, bias), dsinks, None, None, None, None


def slope_of(ctx: Any, bias: Tensor | None) -> Tensor | None:
    """Zeros for the gradient of a bias, in f32 at least; None if it needs none."""
    wide = None if bias is None else torch.promote_types(bias.dtype, torch.float32)
    return torch.zeros_like(bias, dtype=wide) if bias is not None and ctx.needs_input_grad[4] else None


def of_bias(slope: Tensor | None, bias: Tensor | None) -> Tensor | None:
    return slope if slope is None or bias is None else slope.to(bias.dtype)


def sloping(seen: AttentionScores, slope: Tensor | None) -> AttentionScores:
    """The same, with a place for the gradient of the bias."""
    return seen if slope is None else replace(seen, scores=replace(seen.scores, slope=slope))  # type: ignore[type-var]


def _given(
    ctx: Any, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None
) -> Iterator[tuple[slice, AttentionScores]]:
    """The keys of each part that has pairs, and how it sees them."""
    if ctx.scores is not None:
        if q.numel():
            masked = None if keep is None else hidden(keep, q.dtype)
            scores = replace(ctx.scores, bias=bias)
            yield slice(0, k.shape[2]), AttentionScores(ctx.scale, False, masked, scores, ctx.start)
        return
    for start, end, causal in ctx.parts:
        if start < end and q.numel():
            added = None if keep is None else hidden(keep[:, start:end], q.dtype)
            if bias is not None:
                added = bias.expand(*bias.shape[:3], k.shape[2])[..., start:end].to(q.dtype)
            yield slice(start, end), AttentionScores(ctx.scale, causal, added)


def kernel_for(q: Tensor, scores: Scores | None = None) -> Kernel:
    """The kernel for attention of q, or for scores that no other makes."""
    return SCORED if scores is not None else KERNELS[kind_of(q.device).attention(q.dtype)]


def hidden(keep: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers to add to scores, [batch, 1, 1, keys]: 0 for keys that are kept, else minus
    infinity."""
    return torch.zeros_like(keep, dtype=dtype).masked_fill_(~keep, -torch.inf)[:, None, None, :]


class Merged:
    """The attention of q to all keys of some parts: their mean by weight."""

    def __init__(self, q: Tensor) -> None:
        self.q = q
        self.found: Pair | None = None

    def add(self, found: Pair) -> None:
        if self.found is None:
            self.found = found
            return
        both = joined(self.found[1], found[1])
        result = sum(result * proportion(sums, both) for result, sums in (self.found, found))
        self.found = result, both

    def whole(self) -> Pair:
        """Result and sums."""
        if self.found is None:
            return torch.zeros_like(self.q), self.q.new_full((*self.q.shape[:-1], 1), -torch.inf)
        return self.found[0].to(self.q.dtype), self.found[1]
