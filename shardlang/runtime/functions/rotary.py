"""Rotary positions from a place on."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from shardlang.runtime.untraced import as_it_is

__all__ = ["rotary"]

Scales = tuple[float, ...] | None


@as_it_is
def _turned(
    size: int, start: int, width: int, base: float, scales: Scales, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin [size, width / 2] of the angles of positions from `start`, in float64."""
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    rates = rates if scales is None else rates * torch.tensor(scales, dtype=torch.float64, device=device)
    places = torch.arange(start, start + size, dtype=torch.float64, device=device)
    angles = torch.outer(places, rates)
    return angles.cos().to(dtype), angles.sin().to(dtype)


_kept_turns = lru_cache(maxsize=16)(_turned)


def rotary(
    x: Tensor, over: int, along: int, base: float, start: int = 0, neighbours: bool = False, part: int | None = None,
    scales: Scales = None,
) -> Tensor:  # fmt: skip
    """x with each pair (i, i + n/2), or (2 i, 2 i + 1), along dim `over` turned by the angle of its
    place along dim `along`, from `start`. part: n, the elements that are turned, the first; scales:
    factors of the pairs' angles.

    Narrow types are turned in float32."""
    width, size = x.shape[over] if part is None else part, x.shape[along]
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    # What is compiled keeps them as its constants.
    turns = _turned if torch.compiler.is_compiling() else _kept_turns
    tables = turns(size, start, width, base, scales, wide.dtype, x.device)
    shape = [1] * x.dim()
    shape[along], shape[over] = size, width // 2
    cos, sin = (t.view(shape) if along < over else t.T.reshape(shape) for t in tables)
    turning = wide.narrow(over, 0, width)
    if neighbours:
        left, right = turning.unflatten(over, (width // 2, 2)).unbind(over + 1)
        made = torch.stack((left * cos - right * sin, right * cos + left * sin), over + 1).flatten(over, over + 1)
    else:
        left, right = turning.chunk(2, over)
        made = torch.cat((left * cos - right * sin, right * cos + left * sin), over)
    rest = wide.narrow(over, width, x.shape[over] - width)
    return (made if width == x.shape[over] else torch.cat((made, rest), over)).to(x.dtype)
