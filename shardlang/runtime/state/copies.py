"""Parameters in a lower precision: one copy of each on a rank, which every read in every microbatch
shares.

The copies are made at the start and after each update, all in one kernel (model.py). The gradient
of a read goes to the parameter in the parameter's own type, before it is added to others."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function


class _Read(Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, copy: Tensor) -> Tensor:
        ctx.dtype = leaf.dtype
        # A tensor of its own for each read: autograd writes into it what made it.
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


def read(leaf: Tensor, copy: Tensor) -> Tensor:
    """The copy of a parameter, in its own memory, with a gradient for `leaf`."""
    found: Tensor = _Read.apply(leaf, copy)
    return found
