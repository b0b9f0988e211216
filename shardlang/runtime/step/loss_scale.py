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

from shardlang.runtime.state.optimizers import by_device, elements

_FIRST, _EVERY = 2.0**16, 2000


class LossScale:
    """factor: what the loss is multiplied by. fitting: steps since it changed. least: the factor
    never becomes less."""

    def __init__(self, least: float = 0.0) -> None:
        self.factor, self.fitting, self._least = _FIRST, 0, least

    @torch.no_grad()
    def remove(self, trained: Sequence[Tensor]) -> None:
        """Divides the gradients by the factor."""
        found = [elements(t.grad) for t in trained if t.grad is not None]
        for (gradients,) in by_device([gradient for gradient in found if gradient.numel()]):
            torch._foreach_mul_(gradients, 1.0 / self.factor)

    def next(self, finite: bool) -> None:
        """The factor of the next step. finite: whether the gradients of all ranks are."""
        self.fitting = self.fitting + 1 if finite else 0
        if not finite:
            self.factor = max(self.factor / 2.0, self._least)
        elif self.fitting == _EVERY:
            self.factor, self.fitting = self.factor * 2.0, 0

    def kept(self) -> dict[str, float]:
        return {"factor": self.factor, "fitting": self.fitting}

    def resumed(self, kept: Mapping[str, Any]) -> None:
        """Goes on from what was kept; ValueError, TypeError or KeyError if that is none."""
        factor, fitting = kept["factor"], kept["fitting"]
        if type(factor) is not float or math.frexp(factor)[0] != 0.5 or factor < 1.0:
            raise ValueError(f"a factor of the loss of {factor!r}")
        if type(fitting) is not int or fitting < 0:
            raise ValueError(f"{fitting!r} steps since it changed")
        self.factor, self.fitting = factor, fitting
