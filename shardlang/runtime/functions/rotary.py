"""Rotary positions from a place on."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from shardlang.runtime.as_it_is import as_it_is


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
