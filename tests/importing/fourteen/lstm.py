"""A classifier of texts by an LSTM, as its author would write it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTMClassifier(nn.Module):
    """The class of a text by the state after its last word."""

    def __init__(self, vocab: int = 50, width: int = 12, hidden: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embedding(ids)
        _, (hidden, _) = self.lstm(embedded)
        return self.fc(hidden[-1])


def build() -> tuple[nn.Module, dict[str, Tensor]]:
    return LSTMClassifier(), {"ids": torch.randint(0, 50, (4, 7))}
