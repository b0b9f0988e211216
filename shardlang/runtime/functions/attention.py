"""Attention of some of a sequence's queries, or with keys left out; rotary positions from a place
on.

Plain attention of a whole sequence is torch's own call in the emitted text."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang.runtime.as_it_is import as_it_is


def attention(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, causal: bool = False, scale: float | None = None,
    start: int = 0,
) -> Tensor:  # fmt: skip
    """[..., heads, queries, width]: q of the places from `start` on, k and v of all places of the
    sequence.

    Heads of q share those of k and v in groups. `keep` [..., keys] is false for keys that no query
    sees."""
    grouped = q.dim() > 2 and q.shape[-3] != k.shape[-3]
    queries = q.shape[-2]
    if causal:
        # Keys after the last query are seen by none: they need no product at all.
        seen = min(k.shape[-2], start + queries)
        k, v = k[..., :seen, :], v[..., :seen, :]
        keep = None if keep is None else keep[..., :seen]
    plain = causal and start == 0 and keep is None
    mask = None if plain else _mask(q, k.shape[-2], keep, causal, start)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=plain, scale=scale, enable_gqa=grouped)


def _mask(q: Tensor, keys: int, keep: Tensor | None, causal: bool, start: int) -> Tensor | None:
    """Which keys each query sees, [..., queries, keys]; None: all."""
    mask = None if keep is None else keep[..., None, None, :] if q.dim() > 2 else keep
    if not causal:
        return mask
    earlier = torch.ones(q.shape[-2], keys, dtype=torch.bool, device=q.device).tril_(start)
    return earlier if mask is None else earlier & mask


@lru_cache(maxsize=16)
@as_it_is
def _turns(
    size: int, start: int, width: int, base: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin [size, width / 2] of the angles of positions from `start`, in float64."""
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    places = torch.arange(start, start + size, dtype=torch.float64, device=device)
    angles = torch.outer(places, rates)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotary(x: Tensor, over: int, along: int, base: float, start: int = 0) -> Tensor:
    """x with each pair (i, i + n/2) along dim `over` turned by the angle of its place along dim
    `along`, from `start`.

    Narrow types are turned in float32."""
    width, size = x.shape[over], x.shape[along]
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    tables = _turns(size, start, width, base, wide.dtype, x.device)
    shape = [1] * x.dim()
    shape[along], shape[over] = size, width // 2
    cos, sin = (t.view(shape) if along < over else t.T.reshape(shape) for t in tables)
    left, right = wide.chunk(2, over)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), over).to(x.dtype)
