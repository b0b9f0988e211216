"""The net of programs/mlp.shard by hand in plain PyTorch: whole, or split over ranks with explicit collectives.

The split one is what Megatron does: the wide layers by columns, the narrow ones by rows, one sum forward and one
backward for each pair.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

PAIRS = 4


class _ToSplitWork(torch.autograd.Function):
    """Nothing forward; the gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _FromSplitWork(torch.autograd.Function):
    """The sum over the ranks; the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Whole(nn.Module):
    """All of the net on one rank; its layers are `layers.0` to `layers.7`, every second one narrow."""

    def __init__(self, d: int, ffn: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(*((d, ffn) if number % 2 == 0 else (ffn, d))) for number in range(2 * PAIRS)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


class Split(nn.Module):
    """This rank's part of the net, for input that is the same on all ranks."""

    def __init__(self, d: int, ffn: int, ranks: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(d, ffn // ranks) for _ in range(PAIRS))
        self.down = nn.ModuleList(nn.Linear(ffn // ranks, d, bias=False) for _ in range(PAIRS))
        self.bias = nn.ParameterList(torch.zeros(d) for _ in range(PAIRS))

    def forward(self, x: Tensor) -> Tensor:
        for number, (up, down, bias) in enumerate(zip(self.up, self.down, self.bias, strict=True)):
            # The first input needs no gradient, so nothing has to be summed there.
            h = F.relu(up(_ToSplitWork.apply(x) if number else x))
            x = F.relu(_FromSplitWork.apply(down(h)) + bias)
        return x


class Training:
    """A net with its optimizer; a step is forward, backward and update on one batch."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)

    def step(self, x: Tensor, label: Tensor) -> Tensor:
        """The loss, without gradient."""
        loss = F.mse_loss(self.net(x), label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def epoch(self, x: Tensor, label: Tensor, batch: int) -> float:
        """The mean loss of an epoch on one rank, over examples in a new order."""
        order, total = torch.randperm(len(x)), torch.zeros(())
        for mine in order.split(batch):
            total += self.step(x[mine], label[mine])
        return total.item() / (len(x) // batch)
