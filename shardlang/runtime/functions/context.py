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
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.comm import blocks
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.primitives import Ready
from shardlang.runtime.comm.record import about, here
from shardlang.runtime.functions.attention import Merged, hidden, kernel_for, of_four
from shardlang.runtime.functions.attention_kernels import Pair, Seen, Three

# Which halves of the queries see which keys, and whether query i only those up to the i-th.
Block = tuple[tuple[int, ...], slice, bool]
ALL = slice(None)


def even_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, keep: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Causal attention, [..., heads, queries, width]: q has a part of the places, k and v all."""
    way = Way(group, True, 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return of_four(_Across, q, k, v, keep, way)


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, keep: Tensor | None = None, causal: bool = False,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Attention, [..., heads, queries, width]: q, k, v and keep have the same part of the places.
    """
    way = Ring(group, causal, 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return of_four(_Across, q, k, v, keep, way)


class Way:
    """How a member comes to its queries and to the keys: here all keys are there."""

    def __init__(self, group: Group, causal: bool, scale: float) -> None:
        self.group, self.causal, self.scale = group, causal, scale
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

    def collected(self, slopes: Iterator[Pair]) -> Pair:
        """The gradients of k and v, from those of each round."""
        (found,) = slopes
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

    def collected(self, slopes: Iterator[Pair]) -> Pair:
        coming: Ready | None = None
        for k, v in slopes:
            both = _packed(k, v)
            coming = self._pass(both if coming is None else both + coming.wait())
        assert coming is not None
        k, v = _unpacked(coming.wait(), k, v)
        return self.theirs(k), self.theirs(v)

    def _pass(self, x: Tensor) -> Ready:
        """Starts to send a part to the next member and to bring that of the one before here."""
        size = self.group.size
        sources = tuple((i - 1) % size for i in range(size))
        if torch.compiler.is_compiling():
            return Ready(blocks.permuted(x, self.group, sources))
        return blocks.begin_permuted(x, self.group, sources)


def _packed(k: Tensor, v: Tensor) -> Tensor:
    return torch.cat((k.reshape(-1), v.reshape(-1)))


def _unpacked(both: Tensor, k: Tensor, v: Tensor) -> Pair:
    return both[: k.numel()].view(k.shape), both[k.numel() :].view(v.shape)


class _Across(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, way: Way) -> Tensor:
        kernel, q = kernel_for(q, keep), way.mine(q)
        k, v, keep = way.keys(k, v, keep)
        halves = [Merged(x) for x in (q.chunk(2, 2) if way.causal else (q,))]
        for owner, k_now, v_now in way.rounds(k, v):
            for at, (rows, keys), seen in _seen(way, owner, k_now, keep, q):
                result, sums = kernel.forward(q[:, :, rows], k_now[:, :, keys], v_now[:, :, keys], seen)
                for half, *part in zip(at, result.chunk(len(at), 2), sums.chunk(len(at), 2), strict=True):
                    halves[half].add((part[0], part[1]))
        found = [half.whole(keep is not None) for half in halves]
        result, sums = (torch.cat(x, 2) if way.causal else x[0] for x in zip(*found, strict=True))
        ctx.save_for_backward(q, k, v, keep, result, sums)
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
        q, k, v, keep, result, sums = ctx.saved_tensors
        way, wide = ctx.way, torch.promote_types(q.dtype, torch.float32)
        kernel, gradient, dq = kernel_for(q, keep), way.mine(gradient), torch.zeros_like(q, dtype=wide)

        def slopes() -> Iterator[Pair]:
            for owner, k_now, v_now in way.rounds(k, v):
                dk, dv = (torch.zeros_like(x, dtype=wide) for x in (k_now, v_now))
                for _, (rows, keys), seen in _seen(way, owner, k_now, keep, q):
                    whole = result[:, :, rows], sums[:, :, rows]
                    given = gradient[:, :, rows], q[:, :, rows], k_now[:, :, keys], v_now[:, :, keys]
                    made: Three = kernel.backward(*given, whole, seen)
                    for total, slope in zip((dq[:, :, rows], dk[:, :, keys], dv[:, :, keys]), made, strict=True):
                        total += slope
                yield dk, dv

        dk, dv = way.collected(slopes())
        return way.theirs(dq.to(q.dtype)), dk.to(k.dtype), dv.to(v.dtype), None, None


def _seen(
    way: Way, owner: int, k: Tensor, keep: Tensor | None, q: Tensor
) -> Iterator[tuple[tuple[int, ...], tuple[slice, slice], Seen]]:
    """The blocks of a round: halves, the queries and keys of a block, and how it sees them."""
    half, known = q.shape[2] // 2, None if keep is None else way.kept(keep, owner)
    for at, keys, causal in way.blocks(owner, k.shape[2]):
        if len(range(k.shape[2])[keys]):
            rows = slice(at[0] * half, None if at[-1] or not way.causal else half)
            yield at, (rows, keys), Seen(way.scale, causal, None if known is None else hidden(known[:, keys], q.dtype))
