"""GRU and LSTM of std.recurrent beside torch's: losses of three steps in float64, by strategies and rank counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from shardlang.cli.main import run

PROGRAM = """
use std.nn: Linear
use std.recurrent: GRU, LSTM

dim batch = 8, seq = 5, d = 4, hidden = 8, deep = 4, classes = 3

model Net {
  layer gru = GRU(d, hidden)
  layer lstm = LSTM(hidden, deep)
  layer head = Linear(deep, classes)

  forward(x: [batch, seq, d]) -> [batch, classes] {
    y, middle = gru(x, expand(0.0 -> [batch, hidden]))
    more = sum(middle, over = hidden)
    zero = expand(0.0 -> [batch, deep])
    z, last, memory = lstm(y, zero, zero)
    return head(mean(z, over = seq) + last * memory) + rearrange(more -> [batch, 1])
  }
}

strategy data {
  mesh dp = auto
  split batch over dp
}

strategy wide {
  mesh mp = auto
  split hidden over mp?
  split deep over mp
}

strategy shared {
  mesh dp = auto
  split batch over dp
  zero 3 over dp
  microbatches 2
  at gru.step, lstm.step: recompute
}

strategy staged {
  mesh pp = 2, dp = auto
  split batch over dp
  stages over pp {
    0: gru
    1: lstm, head
  }
  microbatches 2
}

train {
  model = Net()
  data = numpy("d.npz", x: [batch, seq, d], label: i64[batch] < classes, shuffle = false)
  loss = cross_entropy(model(x), label)
  optimizer = adamw(lr = 0.01)
  precision = f64
  init = safetensors("w.safetensors")
  steps = 3
}
"""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = torch.nn.GRU(4, 8, batch_first=True)
        self.lstm = torch.nn.LSTM(8, 4, batch_first=True)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, middle = self.gru(x)
        z, (last, memory) = self.lstm(y)
        return self.head(z.mean(1) + last[0] * memory[0]) + middle[0].sum(1, keepdim=True)

    def named(self) -> dict[str, torch.Tensor]:
        """The weights as std.recurrent calls them: a gate is a part of torch's."""
        found = {"head.weight": self.head.weight.detach(), "head.bias": self.head.bias.detach()}
        for name, gates in (("gru", ("reset", "update", "new")), ("lstm", ("in", "forget", "cell", "out"))):
            for kind in ("weight", "bias"):
                for of, side, layer in (("x", "ih", ""), ("h", "hh", "step.")):
                    parts = getattr(getattr(self, name), f"{kind}_{side}_l0").detach().chunk(len(gates))
                    found |= {f"{name}.{layer}{gate}_{of}.{kind}": part.contiguous()
                              for gate, part in zip(gates, parts, strict=True)}  # fmt: skip
        return found


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The program with its data and torch's weights, and the losses of torch."""
    torch.manual_seed(3)
    folder, model = tmp_path_factory.mktemp("scan"), Net().double()
    save_file(model.named(), folder / "w.safetensors")
    x, label = torch.randn(8, 5, 4, dtype=torch.float64), torch.randint(0, 3, (8,))
    np.savez(folder / "d.npz", x=x.numpy(), label=label.numpy())
    (folder / "scan.shard").write_text(PROGRAM, "utf-8")
    optimizer, theirs = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), label)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    return folder / "scan.shard", theirs


@pytest.mark.parametrize(("strategy", "ranks"), [
    ("data", 1), ("data", 2), ("data", 4), ("wide", 2), ("wide", 4), ("shared", 2), ("staged", 4),
])  # fmt: skip
def test_losses_are_those_of_torch(strategy: str, ranks: int, beside: tuple[Path, list[float]]) -> None:
    path, theirs = beside
    figures = path.with_suffix(f".{strategy}.{ranks}.jsonl")
    asked = ["run", str(path), "--ranks", str(ranks), "--strategy", strategy, "--simulate", "--metrics", str(figures)]
    assert run(asked) == 0
    losses = [json.loads(line)["loss"] for line in figures.read_text().splitlines()]
    assert losses == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("precision", ["bf16", "bf16(stream = bf16)"])
def test_a_state_of_zeros_comes_back_in_bf16(precision: str, beside: tuple[Path, list[float]]) -> None:
    """In a stream, zeros are f32 and what the cell makes of them is bf16; such a scan was refused (SH297)."""
    path, theirs = beside
    low, figures = path.with_name("low.shard"), path.with_name(f"low.{len(precision)}.jsonl")
    low.write_text(PROGRAM.replace("precision = f64", f"precision = {precision}"), "utf-8")
    assert run(["run", str(low), "--ranks", "2", "--strategy", "wide", "--simulate", "--metrics", str(figures)]) == 0
    losses = [json.loads(line)["loss"] for line in figures.read_text().splitlines()]
    assert losses == pytest.approx(theirs, rel=1e-6)  # simulated ranks round nothing to bf16
