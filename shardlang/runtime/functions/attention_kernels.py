"""The kernels for attention, by name: each gives the result and the logarithm of the sum of each
query's weights, and from those of all keys the gradients of some.

Such sums are [batch, heads, queries, 1], or two numbers that make one, where numbers are added to
scores: masks of other libraries add -3.4e38, and if all keys of a query have that, one number would
round away how many keys there are.

All take [batch, heads, places, width], where heads of q may share those of k and v. Which one a
device has is in device.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang.frozen.records import dataclass

aten = torch.ops.aten
Pair = tuple[Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class AttentionScores:
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
    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: AttentionScores) -> Pair:
        """The attention of q to k and v, and the sums: 0 and minus infinity for a query that sees
        no key."""

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: AttentionScores) -> Three:
        """The gradients of q, k and v. whole: result and sums of these keys and all others."""


class Plain(Kernel):
    """All scores at once, by products: for types that a device has no kernel for."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: AttentionScores) -> Pair:
        weights, sums = weighed(self._scores(q, k, seen))
        return weights.to(v.dtype) @ shared(v, q), sums

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: AttentionScores) -> Three:
        result, sums = whole
        weights = share(self._scores(q, k, seen), sums).to(q.dtype)
        slope = gradient @ shared(v, q).mT - (gradient * result).sum(-1, keepdim=True)
        slope = weights * slope * seen.scale
        return slope @ shared(k, q), summed(slope.mT @ q, k), summed(weights.mT @ gradient, v)

    def _scores(self, q: Tensor, k: Tensor, seen: AttentionScores) -> Tensor:
        scores = (q @ shared(k, q).mT).to(torch.promote_types(q.dtype, torch.float32)) * seen.scale
        scores = scores if seen.bias is None else scores + seen.bias
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        return scores.masked_fill(later, -torch.inf) if seen.causal else scores


class Host(Kernel):
    """The CPU's."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: AttentionScores) -> Pair:
        call = aten._scaled_dot_product_flash_attention_for_cpu
        result, sums = call(*_rows(q, k, v), 0.0, seen.causal, attn_mask=seen.bias, scale=seen.scale)
        return _told((result, sums), seen)

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: AttentionScores) -> Three:
        call = aten._scaled_dot_product_flash_attention_for_cpu_backward
        gradient, sums = _made_up(gradient, whole[1])
        given = *_rows(gradient, q, k, v), whole[0], sums
        dq, dk, dv = call(*given, 0.0, seen.causal, attn_mask=seen.bias, scale=seen.scale)
        return dq, dk, dv


class Efficient(Kernel):
    """A GPU's, with the same number of heads of queries and of keys. It computes in f32: what it
    gave in 16 bits on an H200, of later queries of a sequence or with hidden keys, was wrong."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: AttentionScores) -> Pair:
        call, seen = aten._scaled_dot_product_efficient_attention, _finite(seen)
        given = _padded(q, shared(k, q), shared(v, q))
        result, sums, *_ = call(*given, _spread(q, k, seen), True, 0.0, seen.causal, scale=seen.scale)
        sums = sums[..., : q.shape[-2]]
        sums = sums if seen.bias is None else sums.masked_fill(sums < _lost(sums), _LOWEST)
        return _told((result[..., : q.shape[-1]].to(q.dtype), sums), seen)

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: AttentionScores) -> Three:
        call, state = aten._scaled_dot_product_efficient_attention_backward, q.new_empty(0)
        gradient, sums = _made_up(gradient, whole[1])
        seen, sums = _finite(seen), F.pad(sums, (0, -q.shape[-2] % 32), value=torch.inf)  # as the kernel gives them
        *rows, result = _padded(gradient, q, shared(k, q), shared(v, q), whole[0])
        given = *rows, _spread(q, k, seen), result, sums, state, state, 0.0
        slopes = call(*given, [True, True, True, False], seen.causal, scale=seen.scale)
        dq, dk, dv = (x[..., : q.shape[-1]].to(q.dtype) for x in slopes[:3])
        return dq, summed(dk, k), summed(dv, v)


_LOWEST = -(2.0**96)
_ROOM = 1 << 20  # numbers of a bias that are looked at together
KERNELS: dict[str, Kernel] = {"plain": Plain(), "host": Host(), "efficient": Efficient()}


def weighed(scores: Tensor) -> Pair:
    """The weights of scores, 0 where all are minus infinity, and their sums as two numbers: the
    greatest score, and the logarithm of the sum of the others beside it."""
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - top.masked_fill(top == -torch.inf, torch.inf))
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0.0, 1.0), torch.cat((top, total.log()), -1)


def share(scores: Tensor, sums: Tensor) -> Tensor:
    """exp(scores - sums); 0 where the sums are of no key."""
    for number in sums.masked_fill(sums == -torch.inf, torch.inf).split(1, -1):
        scores = scores - number
    return torch.exp(scores)


def joined(one: Tensor, other: Tensor) -> Tensor:
    """The sums of all keys, from those of two parts."""
    if one.shape[-1] == 1:
        return torch.logaddexp(one, other)
    top = torch.maximum(one, other)[..., :1]
    top = top.masked_fill(top == -torch.inf, 0.0)
    return torch.cat((top, torch.logaddexp(*(x[..., :1] - top + x[..., 1:] for x in (one, other)))), -1)


def proportion(some: Tensor, sums: Tensor) -> Tensor:
    """The weight of keys with the sums `some` among those of `sums`; 0 if there are none."""
    apart = some - sums.masked_fill(sums == -torch.inf, torch.inf)
    return torch.exp(apart if apart.shape[-1] == 1 else apart.sum(-1, keepdim=True))


def _lost(sums: Tensor) -> float:
    """The number below which a bias takes up the scores that it is added to: numbers of that size
    are 16 apart, and exp(-16) is nothing beside 1."""
    return float(-16.0 / torch.finfo(sums.dtype).eps)


def _told(found: Pair, seen: AttentionScores) -> Pair:
    """A kernel's result and sums, right for queries that see no key, for which one kernel gives a
    sum of 0, another infinity or NaN; and for those of which all keys have a low bias, where the
    kernel's sum is the greatest score alone."""
    result, sums = found
    if seen.bias is None:
        return result, sums.unsqueeze(-1)
    top, count = (x[..., : sums.shape[-1]] for x in _greatest(seen.bias, seen.causal))
    blind, more = top == -torch.inf, count.to(sums.dtype).log().masked_fill(top >= _lost(sums), 0.0)
    both = torch.stack((sums.masked_fill(blind, -torch.inf), more.expand_as(sums)), -1)
    # In place: else the result would not lie in memory as the queries do.
    return result.masked_fill_(blind.unsqueeze(-1), 0.0), both


def _greatest(bias: Tensor, causal: bool) -> Pair:
    """The greatest bias that each query sees, [batch | 1, heads | 1, queries | 1], and how many
    keys have it. No copy has the size of a large bias."""
    if causal and bias.shape[-2] == 1:  # the same of all queries: each sees one key more
        top = (bias := bias.squeeze(-2)).cummax(-1).values
        so_far, new = (bias == top).cumsum(-1), top > F.pad(top, (1, -1), value=-torch.inf)
        return top, so_far - torch.where(new, so_far - 1, 0).cummax(-1).values
    tops, counts, step = [], [], max(1, _ROOM // max(1, bias[..., :1, :].numel()))
    for first in range(0, bias.shape[-2], step):
        rows = bias[..., first : first + step, :]
        if causal:
            later = torch.ones(rows.shape[-2:], dtype=torch.bool, device=rows.device).triu_(first + 1)
            rows = rows.masked_fill(later, -torch.inf)
        tops.append(rows.amax(-1))
        counts.append((rows == tops[-1].unsqueeze(-1)).sum(-1))
    return torch.cat(tops, -1), torch.cat(counts, -1)


def _made_up(gradient: Tensor, sums: Tensor) -> Pair:
    """Sums of one number, as torch's kernels take them, and the gradient of the result times what
    that number lacks: their gradients are products of this one with the weights that they make."""
    first, *more = sums.unbind(-1)
    if not more:
        return gradient, first
    both = first + more[0]
    lack = (more[0] - (both - first)).nan_to_num(0.0)  # of a query that sees no key there is none
    return (gradient * torch.exp(-lack).unsqueeze(-1)).to(gradient.dtype), both


def _finite(seen: AttentionScores) -> AttentionScores:
    """With a bias that a GPU's kernel keeps finite: it multiplies by log2(e), and -3.4e38 has no
    room for that."""
    if seen.bias is None:
        return seen
    bias = seen.bias.float()
    return replace(seen, bias=torch.where((bias < _lost(bias)) & (bias > -torch.inf), _LOWEST, bias))


def _rows(*xs: Tensor) -> list[Tensor]:
    """The same tensors, but with the last dim minor in memory, as kernels read them."""
    return [x if x.stride(-1) == 1 else x.contiguous() for x in xs]


def _padded(*xs: Tensor) -> list[Tensor]:
    """Such tensors in f32 with zeros behind their last dim, up to a multiple of 8."""
    return _rows(*(F.pad(x.float(), (0, -x.shape[-1] % 8)) for x in xs))


def _spread(q: Tensor, k: Tensor, seen: AttentionScores) -> Tensor | None:
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
