"""The factor of the loss in f16: gradients of activations that would be zero there come out large
enough, and those that become too large end the step without an update.

The rule and its numbers are those of torch.amp.GradScaler. The factor is a power of two, so that
no bit of a gradient changes by it; it is the same on all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import everyone, world
from shardlang.runtime.comm.record import about
from shardlang.runtime.state.optimizers import by_device, elements

_FIRST, _EVERY = 2.0**16, 2000


class LossScale:
    """factor: what the loss is multiplied by. fitting: steps since it changed."""

    def __init__(self) -> None:
        self.factor, self.fitting = _FIRST, 0

    @torch.no_grad()
    def removed(self, trained: Sequence[Tensor]) -> bool:
        """Divides the gradients by the factor; whether those of all ranks are finite. The host
        waits for them."""
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        found = [elements(t.grad) for t in trained if t.grad is not None]
        for (gradients,) in by_device([gradient for gradient in found if gradient.numel()]):
            torch._foreach_mul_(gradients, 1.0 / self.factor)
            total += torch.stack(torch._foreach_norm(gradients, torch.inf)).double().sum().to(world.device)
        if world.size > 1:
            with about(b"whether the gradients fit f16"):
                total = primitives.begin_reduce(total, everyone()).wait()
        finite = bool(total.isfinite())
        self._next(finite)
        return finite

    def _next(self, finite: bool) -> None:
        self.fitting = self.fitting + 1 if finite else 0
        if not finite:
            self.factor /= 2.0
        elif self.fitting == _EVERY:
            self.factor, self.fitting = self.factor * 2.0, 0

    def kept(self) -> dict[str, float]:
        return dict(vars(self))

    def resumed(self, kept: Mapping[str, Any]) -> None:
        """Goes on from what was kept; ValueError, TypeError or KeyError if that is none."""
        factor, fitting = kept["factor"], kept["fitting"]
        if type(factor) is not float or math.frexp(factor)[0] != 0.5 or factor < 1.0:
            raise ValueError(f"a factor of the loss of {factor!r}")
        if type(fitting) is not int or fitting < 0:
            raise ValueError(f"{fitting!r} steps since it changed")
        self.factor, self.fitting = factor, fitting
