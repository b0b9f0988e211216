"""Parameters in a lower precision: one copy of each on a rank, which every read in every microbatch
shares.

The copies are made at the start and after each update, all in one kernel (model.py). The gradient
of a read goes to the parameter in the parameter's own type, before it is added to others."""

from __future__ import annotations

from typing import Any

import torch
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


# What torch's `apply` ends with: to look for torch.func before that takes longer than a cast does.
_APPLY: Any = super(Function, _Read).apply


def read(leaf: Tensor, copy: Tensor) -> Tensor:
    """The copy of a parameter, in its own memory, with a gradient for `leaf`."""
    apply = _Read.apply if torch.compiler.is_compiling() else _APPLY
    found: Tensor = apply(leaf, copy)
    return found
