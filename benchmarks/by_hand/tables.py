"""programs/tables.shard as one writes it by hand in plain PyTorch: nn.Embedding(sparse=True) with SparseAdam, and Adam
for what is dense.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batches = Sequence[tuple[Tensor, Tensor]]  # of an epoch: ids and labels


class Training:
    """The state of a run from given parameters; `train(epochs)` trains on and gives the losses."""

    def __init__(self, table: Tensor, w: Tensor) -> None:
        self.table = nn.Embedding.from_pretrained(table.clone(), freeze=False, sparse=True)
        self.w = nn.Parameter(w.clone())
        self.sparse = torch.optim.SparseAdam(self.table.parameters(), lr=1e-3)
        self.dense = torch.optim.Adam([self.w], lr=1e-3, fused=True)

    def train(self, epochs: Sequence[Batches]) -> list[float]:
        losses = []
        for batches in epochs:
            for ids, label in batches:
                loss = F.mse_loss(self.table(ids).sum(1) @ self.w, label)
                self.sparse.zero_grad()
                self.dense.zero_grad()
                loss.backward()
                self.sparse.step()
                self.dense.step()
                losses.append(loss.item())
        return losses
