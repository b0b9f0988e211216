"""Attention whose scores no kernel of torch's makes: with a window, a cap, a bias that has a
gradient, or weights that drop out.

Scores are made for some rows of queries at a time, from the keys that these see, and again in
backward. Which weights fall out is drawn by the index of each among all pairs, so neither the
layout nor the number of ranks decides it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang.frozen.records import dataclass
from shardlang.runtime import random
from shardlang.runtime.functions.attention_kernels import (
    AttentionScores,
    Kernel,
    Pair,
    Three,
    joined,
    proportion,
    share,
    shared,
    summed,
    weighed,
)
from shardlang.runtime.functions.masks import kept

# The most scores that are there at one time.
ROOM = 1 << 22
_FEW = 128  # rows that are made at once under a narrow window


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores become weights. causal, window: by places in the whole sequence. bias: [batch | 1,
    heads | 1, queries | 1, keys | 1], its rows from the place `first` on. p: the share of weights
    that falls out, by numbers of `key`; whole: the sizes of all weights, [..., heads, queries,
    keys]; lead, offsets: sizes and first indices here of those before the last two. slope: where
    the gradient of the bias is added."""

    causal: bool
    window: int | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    first: int = 0
    p: float = 0.0
    key: random.Key = 0
    whole: tuple[int, ...] = ()
    lead: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    slope: Tensor | None = None

    def sees(self, rows: range, keys: range) -> range:
        """The keys that any of some rows sees."""
        near = self.window or len(keys) + len(rows) + abs(rows.start - keys.start)
        low, high = rows.start - near + 1, rows.stop if self.causal else rows.stop + near - 1
        return range(max(low, keys.start), max(low, keys.start, min(high, keys.stop)))

    def hidden(self, rows: range, keys: range, device: torch.device) -> Tensor | None:
        """[rows, keys]: which pairs are not seen; None if all are."""
        if not (self.causal or self.window):
            return None
        apart = random.places(rows.start, len(rows), device)[:, None] - random.places(keys.start, len(keys), device)
        beyond = apart < 0 if self.causal else None
        far = apart.abs() >= self.window if self.window else None
        return beyond | far if beyond is not None and far is not None else far if beyond is None else beyond

    def part(self, x: Tensor, rows: range, keys: range) -> Tensor:
        """The bias, or its slope, of some pairs."""
        x = x if x.shape[2] == 1 else x[:, :, rows.start - self.first : rows.stop - self.first]
        return x if x.shape[3] == 1 else x[..., keys.start : keys.stop]

    def kept(self, like: Tensor, rows: range, keys: range) -> Tensor | float:
        """0 for weights that fall out, elsewhere 1 / (1 - p), [batch, heads, rows, keys]."""
        if not self.p:
            return 1.0
        sizes, places = (*self.lead, len(rows), len(keys)), (*self.offsets, rows.start, keys.start)
        drawn = kept(self.key, self.p, sizes, self.whole, places, like.device)
        return drawn.to(like.dtype).div_(1.0 - self.p).view(like.shape)


class Scored(Kernel):
    """`seen.scores` of rows of queries from `seen.row` on, and of keys from `seen.key` on."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: AttentionScores) -> Pair:
        result, sums = torch.zeros_like(q), q.new_full((*q.shape[:-1], 2), -torch.inf, dtype=_wide(q))
        k, v = shared(k, q), shared(v, q)
        for rows, keys, places in _parts(q, k, seen):
            scores, _ = _scores(q[:, :, rows], k[:, :, keys], seen, places)
            weights, sums[:, :, rows] = weighed(scores)
            weights = weights * _of(seen).kept(scores, *places)
            result[:, :, rows] = weights.to(v.dtype) @ v[:, :, keys]
        return result, sums

    def backward(self, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, whole: Pair, seen: AttentionScores) -> Three:
        result, sums = whole
        keys_of, values_of, scores = shared(k, q), shared(v, q), _of(seen)
        dq, dk, dv = (torch.zeros_like(x, dtype=_wide(q)) for x in (q, keys_of, values_of))
        total = (gradient * result).sum(-1, keepdim=True)
        for rows, keys, places in _parts(q, k, seen):
            asking, asked, slope = q[:, :, rows], keys_of[:, :, keys], gradient[:, :, rows]
            made, bend = _scores(asking, asked, seen, places)
            kept = scores.kept(made, *places)
            weights = share(made, sums[:, :, rows])
            slopes = (slope @ values_of[:, :, keys].mT).to(weights.dtype) * kept
            slopes = weights * (slopes - total[:, :, rows])
            dv[:, :, keys] += (weights * kept).to(q.dtype).mT @ slope
            if scores.slope is not None:
                found = scores.part(scores.slope, *places)
                found += slopes.sum_to_size(found.shape)
            slopes = (slopes * bend * seen.scale).to(q.dtype)
            dq[:, :, rows] = slopes @ asked
            dk[:, :, keys] += slopes.mT @ asking
        return dq.to(q.dtype), summed(dk.to(k.dtype), k), summed(dv.to(v.dtype), v)


SCORED = Scored()


def _of(seen: AttentionScores) -> Scores:
    assert isinstance(seen.scores, Scores)
    return seen.scores


def _wide(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)


def _parts(q: Tensor, k: Tensor, seen: AttentionScores) -> Iterator[tuple[slice, slice, tuple[range, range]]]:
    """Rows and the keys that they see, as slices and by their places, of as many pairs as there is
    room for."""
    batch, heads, count, _ = q.shape
    scores, every = _of(seen), range(seen.key, seen.key + k.shape[2])
    reach = min(len(every), 3 * max(scores.window, _FEW)) if scores.window else len(every)
    step = max(1, ROOM // max(1, batch * heads * reach))
    step = min(step, max(scores.window, _FEW)) if scores.window else step
    for start in range(0, count if batch * heads else 0, step):
        stop = min(start + step, count)
        places = range(seen.row + start, seen.row + stop)
        keys = scores.sees(places, every)
        if keys:
            yield slice(start, stop), slice(keys.start - seen.key, keys.stop - seen.key), (places, keys)


def _scores(q: Tensor, k: Tensor, seen: AttentionScores, places: tuple[range, range]) -> tuple[Tensor, Tensor | float]:
    """[batch, heads, rows, keys], and the slope of a score in the product that it is made of."""
    given, bend = _of(seen), 1.0
    scores: Tensor = (q @ k.mT).to(_wide(q)) * seen.scale
    if given.softcap is not None:
        shares = torch.tanh(scores / given.softcap)
        scores, bend = given.softcap * shares, 1.0 - shares.square()
    if given.bias is not None:
        scores = scores + given.part(given.bias, *places)
    if seen.bias is not None:
        keys = places[1]
        scores = scores + seen.bias[..., keys.start - seen.key : keys.stop - seen.key]
    hidden = given.hidden(*places, q.device)
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf), bend


def lined_up(x: Tensor, lead: Sequence[int]) -> Tensor:
    """A bias as [batch | 1, heads | 1, queries | 1, keys | 1]. lead: the queries' dims before the
    last two."""
    x = x.view(*[1] * max(0, len(lead) + 2 - x.dim()), *x.shape)
    if len(lead) < 2:
        return x.view(*[1] * (4 - x.dim()), *x.shape)
    batch, of = math.prod(x.shape[:-3]), math.prod(lead[:-1])
    x = x if batch in (1, of) else x.expand(*lead[:-1], *x.shape[-3:])
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def with_sinks(whole: Pair, sinks: Tensor | None, biased: bool) -> Pair:
    """Result and sums beside a further key of each head, which has a score and no value. Sums of a
    query that sees no key become infinite: it weighs 0 in backward. They stay two numbers if
    anything but 0 and minus infinity was added to scores."""
    result, sums = whole
    if sums.shape[-1] == 2 and not biased:
        sums = sums.sum(-1, keepdim=True)
    if sinks is not None:
        lone = sinks.view(1, -1, 1, 1).to(sums.dtype).expand_as(sums[..., :1])
        both = joined(sums, F.pad(lone, (0, sums.shape[-1] - 1)))
        result, sums = result.mul_(proportion(sums, both)), both
    return result, sums.masked_fill_(sums == -torch.inf, torch.inf)


def slope_of_sinks(gradient: Tensor, whole: Pair, sinks: Tensor) -> Tensor:
    """The gradient of the scores of those keys, [heads]."""
    result, sums = whole
    weights = share(sinks.view(1, -1, 1, 1), sums)
    return -(weights * (gradient * result).sum(-1, keepdim=True)).sum((0, 2, 3)).to(sinks.dtype).view(sinks.shape)
