"""programs/tables.shard as one writes it by hand in plain PyTorch: nn.Embedding(sparse=True) with SparseAdam, and Adam
for what is dense.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batches = Sequence[tuple[Tensor, Tensor]]


class Training:
    """The state of a run over `batches` of ids and labels; `epochs(n)` trains on for n epochs."""

    def __init__(self, rows: int, width: int, batches: Batches) -> None:
        self.batches = batches
        self.table = nn.Embedding(rows, width, sparse=True)
        self.w = nn.Parameter(torch.randn(width, 1) * 0.1)
        self.sparse = torch.optim.SparseAdam(self.table.parameters(), lr=1e-3)
        self.dense = torch.optim.Adam([self.w], lr=1e-3, fused=True)

    def epochs(self, count: int) -> None:
        for _ in range(count):
            for ids, label in self.batches:
                loss = F.mse_loss(self.table(ids).sum(1) @ self.w, label)
                self.sparse.zero_grad()
                self.dense.zero_grad()
                loss.backward()
                self.sparse.step()
                self.dense.step()
                loss.item()  # the figure of the step
