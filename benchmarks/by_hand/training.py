"""A training loop by hand: a net, an optimizer, a loss. What net it is, or how it is spread over ranks, is not told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Training:
    """A step is forward, backward and update on one batch."""

    def __init__(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        self.net, self.optimizer, self.loss = net, optimizer, loss

    def step(self, x: Tensor, label: Tensor) -> Tensor:
        """The loss, without gradient."""
        loss = self.loss(self.net(x), label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def steps(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """The loss of each."""
        return torch.stack([self.step(x, label) for x, label in batches])

    def epoch(self, x: Tensor, label: Tensor, batch: int) -> float:
        """The mean loss of an epoch on one rank, over examples in a new order."""
        order, total = torch.randperm(len(x)), torch.zeros(())
        for mine in order.split(batch):
            total += self.step(x[mine], label[mine])
        return total.item() / (len(x) // batch)


def parts(x: Tensor, label: Tensor, batch: int, rank: int, ranks: int) -> list[tuple[Tensor, Tensor]]:
    """This rank's part of each batch."""
    each = batch // ranks
    starts = range(rank * each, len(x), batch)
    return [(x[start : start + each], label[start : start + each]) for start in starts]


def mean_over_ranks(losses: Tensor) -> list[float]:
    """The losses of the whole batches, from the means over this rank's parts."""
    dist.all_reduce(losses)
    return (losses / dist.get_world_size()).tolist()
