"""programs/wide_deep.shard as one writes it by hand in plain PyTorch: nn.Embedding(sparse=True) and SparseAdam in the
host's memory, the rest on a device; rows go there, and their gradients come back, through page-locked memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sent(x: Tensor, device: torch.device) -> Tensor:
    """`x` of the host on a device, without a wait."""
    return (x.pin_memory() if device.type != "cpu" else x).to(device, non_blocking=True)


class Training:
    """The state of a run from given parameters of the whole program, by path."""

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self.device = device
        self.tables = [
            nn.Embedding.from_pretrained(weights[name].to("cpu", copy=True), freeze=False, sparse=True)
            for name in ("wide_table", "deep_table")
        ]
        widths = [weights["fc1.weight"].shape[1], *(len(weights[f"fc{n}.bias"]) for n in range(1, 6))]
        layers = [nn.Linear(into, out, device=device) for into, out in pairwise(widths)]
        for number, layer in enumerate(layers, 1):
            layer.load_state_dict({name: weights[f"fc{number}.{name}"] for name in ("weight", "bias")})
        self.tower = nn.Sequential(*[module for layer in layers for module in (layer, nn.ReLU())][:-1])
        self.bias = nn.Parameter(weights["wide_bias"].to(device, copy=True))
        self.sparse = torch.optim.SparseAdam([table.weight for table in self.tables], lr=1e-3)
        self.dense = torch.optim.Adam([*self.tower.parameters(), self.bias], lr=1e-3, fused=True)

    def step(self, ids: Tensor, values: Tensor, label: Tensor) -> Tensor:
        """The loss of a batch of the host, without gradient."""
        values, label = sent(values, self.device).unsqueeze(2), sent(label, self.device)
        rows = [table(ids) for table in self.tables]
        wide, deep = there = [sent(of_table.detach(), self.device).requires_grad_() for of_table in rows]
        scores = (wide * values).sum(1) + self.bias + self.tower((deep * values).flatten(1))
        loss = F.mse_loss(scores, label)
        self.sparse.zero_grad()
        self.dense.zero_grad()
        loss.backward()
        self.dense.step()
        torch.autograd.backward(rows, [x.grad.cpu() for x in there])
        self.sparse.step()
        return loss.detach()

    def steps(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """The loss of each."""
        return torch.stack([self.step(*batch) for batch in batches])
