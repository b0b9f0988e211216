"""A product whose operand has come from a collective -> the same, in backward with that dual
beside the gradient of the weight: `rt.overlapped_linear`.

    backward of y = x @ w.T, where x was made of x' by an all-gather (or is x', alike on ranks):
        dx = dy @ w         then the collective's dual begins: the reduce-scatter (all-reduce) of dx
        dw = dy.T @ x       while it travels
        dx'                 is waited for

Autograd would compute dx and dw at once, and only then begin. So the product gives autograd dx
alone; dw is left to the collective's own backward (comm/collectives.py), between its begin and its
end. Several products of one operand (q, k, v) leave theirs to it. The numbers are autograd's, by
the same kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.comm.collectives import LateGradients

__all__ = ["overlapped_linear"]


class _Later:
    """The gradient of a weight that is computed later, from the rows of both operands."""

    def __init__(self) -> None:
        self.rows: tuple[Tensor, Tensor] | None = None
        self.made: Tensor | None = None

    def compute(self) -> None:
        if self.rows is not None:
            (x, gradient), self.rows = self.rows, None
            # In this order: so autograd has it of F.linear, and the other has other bits on some
            # processors.
            self.made = gradient.t().mm(x)

    def take(self) -> Tensor | None:
        self.compute()
        made, self.made = self.made, None
        return made


class _Weight(Function):
    """A weight as a product reads it. Autograd comes here after the collective, with a gradient
    that says nothing."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, later: _Later) -> Tensor:
        ctx.later = later
        return w.detach()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, None]:
        return ctx.later.take(), None


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, later: _Later, beside: list[_Later]) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.later, ctx.beside = later, beside
        return F.linear(x, w, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        x, w = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        ctx.later.rows = x.reshape(-1, x.shape[-1]), rows
        ctx.beside.append(ctx.later)
        bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return rows.mm(w).view(x.shape), w.new_empty(()).expand(w.shape), bias, None, None


def overlapped_linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear(x, w, bias): x [..., in], w [out, in], bias [out] -> [..., out]."""
    if torch.compiler.is_compiling() or not LateGradients.on or not torch.is_grad_enabled() or not w.requires_grad:
        return F.linear(x, w, bias)
    beside = getattr(x.grad_fn, "beside", None)
    if beside is None:
        return F.linear(x, w, bias)
    later = _Later()
    read = _Weight.apply(w, later)
    # Of what is ready, autograd takes the latest first: this one is to come behind the collective.
    read.grad_fn._set_sequence_nr(x.grad_fn._sequence_nr() - 1)
    made: Tensor = _Product.apply(x, read, bias, later, beside)
    return made
