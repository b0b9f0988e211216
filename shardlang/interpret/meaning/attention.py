"""The meaning of attention and rotary positions, from the formulas, for the local positions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from shardlang.interpret.meaning.call import Call


def _attention(call: Call, q: Tensor, k: Tensor, v: Tensor, *keep: Tensor) -> Tensor:
    """Weights exp(q k' * scale) over their sum along the seen keys; 0 if a query sees none."""
    if q.dim() > 2:
        sharing = q.shape[-3] // max(1, k.shape[-3])
        k, v = (x.repeat_interleave(sharing, -3) for x in (k, v))
    scale = call.attrs["scale"]
    scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if call.attrs["causal"]:
        places = call.start(call.rule.operands[0][-2]) + torch.arange(q.shape[-2])
        seen = torch.arange(k.shape[-2]) <= places[:, None]
    if keep:
        shown = keep[0][..., None, None, :] if q.dim() > 2 else keep[0]
        seen = seen & shown
    greatest = torch.where(seen, scores, -math.inf).detach().amax(-1, keepdim=True)
    weights = torch.where(seen, torch.exp(scores - torch.where(greatest > -math.inf, greatest, 0.0)), 0.0)
    total = weights.sum(-1, keepdim=True)
    return (weights / torch.where(total > 0, total, 1.0)) @ v


def _rotary(call: Call, x: Tensor) -> Tensor:
    """Pairs as complex numbers, times e^(i * angle)."""
    over, along = call.attrs["over"], call.attrs["along"]
    half, size = x.shape[over] // 2, x.shape[along]
    places = call.start(call.rule.operands[0][along]) + torch.arange(size, dtype=torch.float64)
    angles = places[:, None] / call.attrs["base"] ** (torch.arange(half, dtype=torch.float64) / half)
    lined = x.movedim((along, over), (-2, -1)).to(torch.float64)
    turned = torch.complex(lined[..., :half], lined[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1).movedim((-2, -1), (along, over)).to(x.dtype)


ATTENTION: dict[str, Callable[..., Tensor]] = {"attention": _attention, "rotary": _rotary}
