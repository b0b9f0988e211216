"""Attention of a sequence that is cut over a group: keys and values go round a ring, or are there
whole; causal attention takes each member as long as any other.

Members have parts of the places in order, so the last would see most keys. For causal attention the
sequence has two chunks a member, and member i computes the queries of chunk i from the first and of
chunk i from the last: halves of the queries are exchanged before, halves of the result after. In
the ring, a member computes with one part of keys and values while the next is on its way; it has no
more of them at once. Blocks of which nothing is seen are left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.comm import blocks
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.primitives import AsyncResult
from shardlang.runtime.comm.record import about, here
from shardlang.runtime.functions.attention import (
    Merged,
    hidden,
    kernel_for,
    of_bias,
    of_four,
    scores_of,
    slope_of,
    sloping,
)
from shardlang.runtime.functions.attention_kernels import AttentionScores, Pair, Three
from shardlang.runtime.functions.attention_scores import Scores, slope_of_sinks, with_sinks

__all__ = ["even_attention", "ring_attention"]

# Which halves of the queries see which keys, and whether query i only those up to the i-th.
Block = tuple[tuple[int, ...], slice, bool]
ALL = slice(None)


def even_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, keep: Tensor | None = None, scale: float | None = None,
    bias: Tensor | None = None, sinks: Tensor | None = None, **how: Any,
) -> Tensor:  # fmt: skip
    """Causal attention, [..., heads, queries, width]: q has a part of the places, k, v and bias
    have all. how: as `scores_of` takes it."""
    scores = scores_of(q, k.shape[-2], True, 0, **how) if how or bias is not None else None
    way = Way(group, True, 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale, scores)
    return of_four(_Across, q, k, v, keep, bias, sinks, way)


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, keep: Tensor | None = None, causal: bool = False,
    scale: float | None = None, bias: Tensor | None = None, sinks: Tensor | None = None, **how: Any,
) -> Tensor:  # fmt: skip
    """Attention, [..., heads, queries, width]: q, k, v and keep have the same part of the places,
    bias has all. how: as `scores_of` takes it."""
    keys = k.shape[-2] * group.size
    scores = scores_of(q, keys, causal, 0, **how) if how or bias is not None else None
    way = Ring(group, causal, 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale, scores)
    return of_four(_Across, q, k, v, keep, bias, sinks, way)


class Way:
    """How a member comes to its queries and to the keys: here all keys are there."""

    def __init__(self, group: Group, causal: bool, scale: float, scores: Scores | None) -> None:
        self.group, self.causal, self.scale, self.scores = group, causal, scale, scores
        size = group.size
        # The chunks of the places that members have: as they are given, and as they compute.
        self.given = tuple((2 * i, 2 * i + 1) for i in range(size))
        self.even = tuple((i, 2 * size - 1 - i) for i in range(size))

    def mine(self, x: Tensor) -> Tensor:
        """The places that this member computes, of those that all members are given."""
        return blocks.dealt(x, 2, self.group, self.given, self.even) if self.causal else x

    def theirs(self, x: Tensor) -> Tensor:
        """The inverse."""
        return blocks.dealt(x, 2, self.group, self.even, self.given) if self.causal else x

    def keys(self, k: Tensor, v: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and `keep` as `rounds` takes them, with what is kept for backward."""
        return k, v, keep

    def rounds(self, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Keys and values, one part after the other, with the member whose part it is."""
        yield self.group.index, k, v

    def blocks(self, owner: int, keys: int) -> Sequence[Block]:
        """The blocks of a round in which anything is seen."""
        at, (one, other) = keys // (2 * self.group.size), self.even[self.group.index]
        low, high = slice(one * at, (one + 1) * at), slice(other * at, (other + 1) * at)
        before, between = slice(0, low.start), slice(low.start, high.start)
        return ((0, 1), before, False), ((0,), low, True), ((1,), between, False), ((1,), high, True)

    def kept(self, keep: Tensor, owner: int) -> Tensor:
        """`keep` of the keys of a round."""
        return keep

    def runs(self, size: int, member: int) -> list[range]:
        """The places that a member computes `size` queries of, each run of them in order."""
        if not self.causal:
            return [range(member * size, (member + 1) * size)]
        return [range(at * (size // 2), (at + 1) * (size // 2)) for at in self.even[member]]

    def places(self, owner: int, keys: int) -> list[range]:
        """The places of the keys of a round."""
        return [range(keys)]

    def passed(self, k: Tensor, v: Tensor, before: Any) -> Any:
        """The gradients of k and v in a round, with what the round before gave here."""
        return k, v

    def collected(self, last: Any, k: Tensor, v: Tensor) -> Pair:
        """The gradients of k and v, from what the last round gave here."""
        found: Pair = last
        return found


class Ring(Way):
    """Keys and values go from member to member, and in backward their gradients behind them."""

    def keys(self, k: Tensor, v: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        whole = None if keep is None else blocks.gathered(keep.byte(), 1, self.group).bool()
        return self.mine(k), self.mine(v), whole

    def rounds(self, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        both, size = _packed(k, v), self.group.size
        for step in range(size):
            coming = self._pass(both) if step + 1 < size else None
            yield (self.group.index - step) % size, *_unpacked(both, k, v)
            both = coming.wait() if coming is not None else both

    def blocks(self, owner: int, keys: int) -> Sequence[Block]:
        here = self.group.index
        if not self.causal:
            return (((0,), ALL, False),)
        if owner == here:
            return (((0, 1), ALL, True),)
        return (((0, 1), slice(0, keys // 2), False),) if owner < here else (((1,), ALL, False),)

    def kept(self, keep: Tensor, owner: int) -> Tensor:
        chunks = keep.chunk(self.group.size * (2 if self.causal else 1), 1)
        return torch.cat([chunks[at] for at in self.even[owner]], 1) if self.causal else chunks[owner]

    def places(self, owner: int, keys: int) -> list[range]:
        return self.runs(keys, owner)

    def passed(self, k: Tensor, v: Tensor, before: Any) -> Any:
        both = _packed(k, v)
        return self._pass(both if before is None else both + before.wait())

    def collected(self, last: Any, k: Tensor, v: Tensor) -> Pair:
        k, v = _unpacked(last.wait(), k, v)
        return self.theirs(k), self.theirs(v)

    def _pass(self, x: Tensor) -> AsyncResult:
        """Starts to send a part to the next member and to bring that of the one before here."""
        size = self.group.size
        sources = tuple((i - 1) % size for i in range(size))
        if torch.compiler.is_compiling():
            return AsyncResult(blocks.permuted(x, self.group, sources))
        return blocks.begin_permuted(x, self.group, sources)


def _packed(k: Tensor, v: Tensor) -> Tensor:
    return torch.cat((k.reshape(-1), v.reshape(-1)))


def _unpacked(both: Tensor, k: Tensor, v: Tensor) -> Pair:
    return both[: k.numel()].view(k.shape), both[k.numel() :].view(v.shape)


class _Across(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, sinks: Tensor | None,
        way: Way,
    ) -> Tensor:  # fmt: skip
        kernel, q = kernel_for(q, way.scores), way.mine(q)
        k, v, keep = way.keys(k, v, keep)
        halves = [Merged(x) for x in (q.chunk(2, 2) if way.causal else (q,))]
        for owner, k_now, v_now in way.rounds(k, v):
            for at, (rows, keys), seen in _seen(way, owner, k_now, keep, bias, q):
                result, sums = kernel.forward(q[:, :, rows], k_now[:, :, keys], v_now[:, :, keys], seen)
                for half, *part in zip(at, result.chunk(len(at), 2), sums.chunk(len(at), 2), strict=True):
                    halves[half].add((part[0], part[1]))
        found = [half.whole() for half in halves]
        whole = tuple(torch.cat(x, 2) if way.causal else x[0] for x in zip(*found, strict=True))
        result, sums = with_sinks((whole[0], whole[1]), sinks, bias is not None)
        ctx.save_for_backward(q, k, v, keep, bias, sinks, result, sums)
        ctx.way, ctx.site = way, here()
        return way.theirs(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.compiler.is_compiling():
            return _Across._back(ctx, gradient)
        with about(ctx.site):
            return _Across._back(ctx, gradient)

    @staticmethod
    def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, bias, sinks, result, sums = ctx.saved_tensors
        way, wide, slope = ctx.way, torch.promote_types(q.dtype, torch.float32), slope_of(ctx, bias)
        kernel, gradient = kernel_for(q, way.scores), way.mine(gradient)
        dq, passed = torch.zeros_like(q, dtype=wide), None
        for owner, k_now, v_now in way.rounds(k, v):
            dk, dv = (torch.zeros_like(x, dtype=wide) for x in (k_now, v_now))
            for _, (rows, keys), seen in _seen(way, owner, k_now, keep, bias, q):
                whole = result[:, :, rows], sums[:, :, rows]
                given = gradient[:, :, rows], q[:, :, rows], k_now[:, :, keys], v_now[:, :, keys]
                made: Three = kernel.backward(*given, whole, sloping(seen, slope))
                for total, part in zip((dq[:, :, rows], dk[:, :, keys], dv[:, :, keys]), made, strict=True):
                    total += part
            passed = way.passed(dk, dv, passed)
        dk, dv = way.collected(passed, k, v)
        dsinks = slope_of_sinks(gradient, (result, sums), sinks) if ctx.needs_input_grad[5] else None
        return way.theirs(dq.to(q.dtype)), dk.to(k.dtype), dv.to(v.dtype), None, of_bias(slope, bias), dsinks, None


# Halves of the queries; the queries and the keys of a block; how it sees them.
_Block = tuple[tuple[int, ...], tuple[slice, slice], AttentionScores]


def _seen(way: Way, owner: int, k: Tensor, keep: Tensor | None, bias: Tensor | None, q: Tensor) -> Iterator[_Block]:
    """The blocks of a round."""
    half, known = q.shape[2] // 2, None if keep is None else way.kept(keep, owner)
    added = None if known is None else hidden(known, q.dtype)
    if way.scores is not None:
        yield from _scored(way, replace(way.scores, bias=bias), owner, k, added, q)
        return
    for at, keys, causal in way.blocks(owner, k.shape[2]):
        if len(range(k.shape[2])[keys]):
            rows = slice(at[0] * half, None if at[-1] or not way.causal else half)
            yield at, (rows, keys), AttentionScores(way.scale, causal, None if added is None else added[..., keys])


def _scored(way: Way, scores: Scores, owner: int, k: Tensor, added: Tensor | None, q: Tensor) -> Iterator[_Block]:
    """The blocks of a round by their places: runs of queries, each with the keys that it sees."""
    row = 0
    for number, rows in enumerate(way.runs(q.shape[2], way.group.index)):
        key = 0
        for keys in way.places(owner, k.shape[2]):
            seen = scores.sees(rows, keys)
            at = slice(key + seen.start - keys.start, key + seen.stop - keys.start)
            if len(seen):
                masked = None if added is None else added[..., at]
                how = AttentionScores(way.scale, False, masked, scores, rows.start, seen.start)
                yield (number,), (slice(row, row + len(rows)), at), how
            key += len(keys)
        row += len(rows)
