"""The net of programs/mlp.shard by hand in plain PyTorch: whole, split over ranks, or in pipeline stages.

Split with explicit collectives is what Megatron does: the wide layers by columns, the narrow ones by rows, one sum
forward and one backward for each pair. Split with DTensor is the same, by `parallelize_module`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from by_hand.training import Training
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

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
    """All of the net, or some pairs of it, on one rank; its layers are `layers.0`, ..., every second one narrow."""

    def __init__(self, d: int, ffn: int, pairs: int = PAIRS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(*((d, ffn) if number % 2 == 0 else (ffn, d))) for number in range(2 * pairs)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


def begun(weights: Mapping[str, Tensor], first: int = 0, pairs: int = PAIRS) -> Whole:
    """Some pairs of the net with the values of the program's parameters, by path."""
    ffn, d = weights["pairs.0.up.weight"].shape
    net = Whole(d, ffn, pairs)
    for number, layer in enumerate(net.layers):
        path = f"pairs.{first + number // 2}.{('up', 'down')[number % 2]}"
        layer.load_state_dict({name: weights[f"{path}.{name}"] for name in ("weight", "bias")})
    return net


def by_dtensor(whole: Whole) -> nn.Module:
    """The net split over all ranks by DTensor."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    styles = {f"layers.{n}": RowwiseParallel() if n % 2 else ColwiseParallel() for n in range(len(whole.layers))}
    return parallelize_module(whole, mesh, styles)


class Split(nn.Module):
    """This rank's part of a net, for input that is the same on all ranks."""

    def __init__(self, whole: Whole) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.up, self.down, self.bias = nn.ModuleList(), nn.ModuleList(), nn.ParameterList()
        for up, down in zip(whole.layers[::2], whole.layers[1::2], strict=True):
            wide = up.out_features // ranks
            self.up.append(nn.Linear(up.in_features, wide))
            self.down.append(nn.Linear(wide, down.out_features, bias=False))
            mine = {"weight": up.weight.chunk(ranks)[rank], "bias": up.bias.chunk(ranks)[rank]}
            self.up[-1].load_state_dict(mine)
            self.down[-1].load_state_dict({"weight": down.weight.chunk(ranks, 1)[rank]})
            self.bias.append(down.bias)

    def forward(self, x: Tensor) -> Tensor:
        for number, (up, down, bias) in enumerate(zip(self.up, self.down, self.bias, strict=True)):
            # The first input needs no gradient, so nothing has to be summed there.
            h = F.relu(up(_ToSplitWork.apply(x) if number else x))
            x = F.relu(_FromSplitWork.apply(down(h)) + bias)
        return x


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    """Fused, which DTensor has no rule for (torch 2.13); it has one for the next best."""
    spread = any(isinstance(parameter, DTensor) for parameter in net.parameters())
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, **{"foreach" if spread else "fused": True})


def training(net: nn.Module) -> Training:
    return Training(net, sgd(net), F.mse_loss)


class Staged:
    """This rank's pairs of the net as its stage of a pipeline, under a schedule of torch.distributed.pipelining."""

    def __init__(
        self, weights: Mapping[str, Tensor], schedule: type[PipelineScheduleSingle], microbatches: int
    ) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        pairs = PAIRS // self.ranks
        net = begun(weights, self.rank * pairs, pairs)
        self.optimizer = sgd(net)
        # Each microbatch counts by its share, so that no pass over the gradients is needed to divide them.
        self.schedule = schedule(
            PipelineStage(net, self.rank, self.ranks, torch.device("cpu")), microbatches,
            lambda y, label: F.mse_loss(y, label) / microbatches, scale_grads=False,
        )  # fmt: skip

    def step(self, x: Tensor, label: Tensor) -> Tensor:
        """The loss of the batch on the last rank, 0 on the others."""
        parts: list[Tensor] = []
        self.optimizer.zero_grad()
        last = {"target": label, "losses": parts} if self.rank == self.ranks - 1 else {}
        self.schedule.step(*([x] if self.rank == 0 else []), **last)
        self.optimizer.step()
        return torch.stack(parts).detach().sum() if parts else torch.zeros(())

    def steps(self, batches: Iterable[tuple[Tensor, Tensor]]) -> list[float]:
        """The loss of each batch, on all ranks."""
        losses = torch.stack([self.step(x, label) for x, label in batches])
        dist.all_reduce(losses)
        return losses.tolist()
