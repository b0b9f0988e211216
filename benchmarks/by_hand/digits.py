"""examples/digits.shard as one writes it by hand in plain PyTorch: on one rank, or data-parallel on several.

What a careful user does is done: data on hand as tensors, one permutation an epoch, gradients as views of the
reducer's buckets, the fused optimizer, figures added up on each rank and read once an epoch.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BATCH, RATE, MOMENTUM = 64, 0.1, 0.9


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.down(F.relu(self.up(image)))


class Training:
    """The state of a run; `epochs(n)` trains on for n epochs."""

    def __init__(self, image: Tensor, label: Tensor, rank: int, ranks: int) -> None:
        self.image, self.label = image, label
        self.rank, self.ranks = rank, ranks
        torch.manual_seed(0)
        self.model: nn.Module = Digits()
        if ranks > 1:
            self.model = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
        self.order = torch.Generator().manual_seed(0)

    def epochs(self, count: int) -> None:
        for _ in range(count):
            loss, accuracy = self._epoch()
            if self.rank == 0:
                print(f"loss {loss:.6g}  accuracy {accuracy:.6g}", flush=True)

    def _epoch(self) -> tuple[float, float]:
        """The mean loss and accuracy of an epoch, which drops what is left after the last whole batch."""
        order = torch.randperm(len(self.image), generator=self.order)
        each, steps = BATCH // self.ranks, len(self.image) // BATCH
        sums = torch.zeros(2)
        for step in range(steps):
            begin = step * BATCH + self.rank * each
            mine = order[begin : begin + each]
            image, label = self.image[mine], self.label[mine]
            scores = self.model(image)
            loss = F.cross_entropy(scores, label)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            sums[0] += loss.detach()
            sums[1] += (scores.detach().argmax(1) == label).float().mean()
        if self.ranks > 1:
            dist.all_reduce(sums)
        mean_loss, accuracy = (sums / (steps * self.ranks)).tolist()
        return mean_loss, accuracy
