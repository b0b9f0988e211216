"""The kernels for attention, by name: each gives the result and the logarithm of the sum of each
query's weights, and from those of all keys the gradients of some.

All take [batch, heads, places, width], where heads of q may share those of k and v. Which one a
device has is in device.py."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang.records import dataclass

aten = torch.ops.aten
Pair = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Seen:
    """How scores are made. bias: what is added to them, [batch | 1, heads | 1, queries | 1, keys].
    causal: query i sees keys up to i of those given. scores: what else makes scores, for queries
    from the place `row` on and keys from the place `key` on (attention_scores.py)."""

    scale: float
    causal: bool = False
    bias: Tensor | None = None
    scores: object = None
    row: int = 0
    key: int = 0


class Kernel(Protocol):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Seen) -> Pair:
        """The attention of q to k and v, and the sums."""

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: Seen) -> Three:
        """The gradients of q, k and v. whole: result and sums of these keys and all others."""


class Plain(Kernel):
    """All scores at once, by products: for types that a device has no kernel for."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Seen) -> Pair:
        scores = self._scores(q, k, seen)
        sums = scores.logsumexp(-1)
        return torch.exp(scores - sums.unsqueeze(-1)).to(v.dtype) @ shared(v, q), sums

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: Seen) -> Three:
        result, sums = whole
        weights = torch.exp(self._scores(q, k, seen) - sums.unsqueeze(-1)).to(q.dtype)
        slope = gradient @ shared(v, q).mT - (gradient * result).sum(-1, keepdim=True)
        slope = weights * slope * seen.scale
        return slope @ shared(k, q), summed(slope.mT @ q, k), summed(weights.mT @ gradient, v)

    def _scores(self, q: Tensor, k: Tensor, seen: Seen) -> Tensor:
        scores = (q @ shared(k, q).mT).to(torch.promote_types(q.dtype, torch.float32)) * seen.scale
        scores = scores if seen.bias is None else scores + seen.bias
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        return scores.masked_fill(later, -torch.inf) if seen.causal else scores


class Host(Kernel):
    """The CPU's."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Seen) -> Pair:
        call = aten._scaled_dot_product_flash_attention_for_cpu
        result, sums = call(*_rows(q, k, v), 0.0, seen.causal, attn_mask=seen.bias, scale=seen.scale)
        return result, sums

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: Seen) -> Three:
        call = aten._scaled_dot_product_flash_attention_for_cpu_backward
        dq, dk, dv = call(*_rows(gradient, q, k, v), *whole, 0.0, seen.causal, attn_mask=seen.bias, scale=seen.scale)
        return dq, dk, dv


class Efficient(Kernel):
    """A GPU's, with the same number of heads of queries and of keys. It computes in f32: what it
    gave in 16 bits on an H200, of later queries of a sequence or with hidden keys, was wrong."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Seen) -> Pair:
        call, bias = aten._scaled_dot_product_efficient_attention, _spread(q, k, seen)
        given = _padded(q, shared(k, q), shared(v, q))
        result, sums, *_ = call(*given, bias, True, 0.0, seen.causal, scale=seen.scale)
        return result[..., : q.shape[-1]].to(q.dtype), sums[..., : q.shape[-2]]

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: Seen) -> Three:
        call, state = aten._scaled_dot_product_efficient_attention_backward, q.new_empty(0)
        sums = F.pad(whole[1], (0, -q.shape[-2] % 32), value=torch.inf)  # as the kernel gives them
        *rows, result = _padded(gradient, q, shared(k, q), shared(v, q), whole[0])
        given = *rows, _spread(q, k, seen), result, sums, state, state, 0.0
        slopes = call(*given, [True, True, True, False], seen.causal, scale=seen.scale)
        dq, dk, dv = (x[..., : q.shape[-1]].to(q.dtype) for x in slopes[:3])
        return dq, summed(dk, k), summed(dv, v)


KERNELS: dict[str, Kernel] = {"plain": Plain(), "host": Host(), "efficient": Efficient()}


def _rows(*xs: Tensor) -> list[Tensor]:
    """The same tensors, but with the last dim minor in memory, as kernels read them."""
    return [x if x.stride(-1) == 1 else x.contiguous() for x in xs]


def _padded(*xs: Tensor) -> list[Tensor]:
    """Such tensors in f32 with zeros behind their last dim, up to a multiple of 8."""
    return _rows(*(F.pad(x.float(), (0, -x.shape[-1] % 8)) for x in xs))


def _spread(q: Tensor, k: Tensor, seen: Seen) -> Tensor | None:
    """The bias for each pair, without memory of its own; rows begin at multiples of 16 elements."""
    if seen.bias is None:
        return None
    keys = k.shape[-2]
    return F.pad(seen.bias.float(), (0, -keys % 16))[..., :keys].expand(*q.shape[:-1], keys)


def shared(k: Tensor, q: Tensor) -> Tensor:
    """k with a copy of a head for each head of q that shares it."""
    return k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], 1)


def summed(gradient: Tensor, k: Tensor) -> Tensor:
    """The gradient of k from that of its copies."""
    return gradient if k.shape[1] == gradient.shape[1] else gradient.unflatten(1, (k.shape[1], -1)).sum(2)
