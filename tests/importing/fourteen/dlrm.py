"""DLRM, as its author would write it: dense features by a bottom MLP, tables for categories, dot products of all
pairs, and a top MLP."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """The logit of a click."""

    def __init__(self, dense: int = 13, rows: int = 40, tables: int = 3, width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        self.bottom = mlp([dense, 32, width])
        pairs = (tables + 1) * tables // 2
        self.top = mlp([width + pairs, 24])
        self.out = nn.Linear(24, 1)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.stack([x, *(table(categories[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
        interactions = products[:, rows, columns]
        return self.out(self.top(torch.cat([x, interactions], dim=1))).squeeze(1)


def build() -> tuple[nn.Module, dict[str, Tensor]]:
    return DLRM(), {"dense": torch.rand(4, 13), "categories": torch.randint(0, 40, (4, 3))}
