"""`blocks[*]` in a loss, a metric and a forward beside torch: losses of three steps in float64, by strategies."""

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

dim batch = 8, d = 4, wide = 8

model Block {
  layer up = Linear(d, wide)
  layer down = Linear(wide, d)

  forward(x: [batch, d]) -> [batch, d] {
    h = up(x) |> relu
    extra = mean(square(h))
    return x + down(h)
  }
}

model Net {
  layer blocks[COUNT] = Block()
  layer last = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d], [] {
    return x |> blocks |> last, sum(blocks[*].extra)
  }
}

strategy data {
  mesh dp = auto
  split batch over dp
}

strategy columns {
  mesh mp = auto
  split wide over mp
}

strategy rows {
  mesh dp = auto
  split batch over dp
  zero 3 over dp
  microbatches 2
  at blocks[*]: recompute
}

strategy staged {
  mesh pp = 2, dp = auto
  split batch over dp
  stages over pp {
    0: blocks[0]
    1: REST
  }
  microbatches 2
}

strategy halves {
  mesh pp = 2, mp = auto
  split wide over mp
  stages over pp {
    0: blocks[0]
    1: REST
  }
  microbatches 4
  schedule "zero_bubble"
}

train {
  model = Net()
  data = numpy("d.npz", x: [batch, d], y: [batch, d], shuffle = false)
  eval = numpy("d.npz", x: [batch, d], y: [batch, d])
  out, extra = model(x)
  decay = sum(square(model.blocks[*].up.weight))
  loss = mse_loss(out, y) + 0.1 * extra + 0.01 * decay + 0.2 * mean(square(model.blocks[*].h))
  metric spread = amax(model.blocks[*].extra) - amin(model.blocks[*].extra)
  optimizer = adamw(lr = 0.01)
  precision = f64
  init = safetensors("w.safetensors")
  steps = 3
}
"""


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.relu(self.up(x))
        return x + self.down(h), h.square().mean()


class Net(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(count)])
        self.last = torch.nn.Linear(4, 4)

    def figures(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, float]:
        extras: list[torch.Tensor] = []
        for block in self.blocks:
            x, extra = block(x)
            extras.append(extra)
        every, decay = torch.stack(extras), sum(block.up.weight.square().sum() for block in self.blocks)
        loss = F.mse_loss(self.last(x), y) + 0.1 * every.sum() + 0.01 * decay + 0.2 * every.mean()
        return loss, float((every.max() - every.min()).detach())


@pytest.fixture(scope="module", params=[1, 2, 3])
def beside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[float]]]:
    """The program of so many layers, with its data and torch's weights, and torch's figures."""
    torch.manual_seed(3)
    folder, model = tmp_path_factory.mktemp("every"), Net(request.param).double()
    named = {name.replace("blocks.", "blocks[").replace(".up", "].up").replace(".down", "].down"): value.detach()
             for name, value in model.named_parameters()}  # fmt: skip
    save_file(named, folder / "w.safetensors")
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    np.savez(folder / "d.npz", x=x.numpy(), y=y.numpy())
    rest = ", ".join(["blocks[1..3]"] * (request.param > 1) + ["last"]).replace("..3", f"..{request.param}")
    (folder / "p.shard").write_text(PROGRAM.replace("COUNT", str(request.param)).replace("REST", rest), "utf-8")
    optimizer, theirs = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01), []
    for _ in range(3):
        optimizer.zero_grad()
        loss, spread = model.figures(x, y)
        loss.backward()
        optimizer.step()
        theirs.append([loss.item(), spread])
    with torch.no_grad():
        loss, spread = model.figures(x, y)
    after = [*theirs[1:], [loss.item(), spread]]  # an epoch is one step, and an evaluation follows
    return folder / "p.shard", [each for pair in zip(theirs, after, strict=True) for each in pair]


@pytest.mark.parametrize(("strategy", "ranks", "real"), [
    ("data", 1, True), ("data", 2, False), ("data", 4, False), ("columns", 2, False), ("rows", 2, True),
    ("staged", 2, True), ("staged", 4, False), ("halves", 4, True),
])  # fmt: skip
def test_losses_are_those_of_torch(
    strategy: str, ranks: int, real: bool, beside: tuple[Path, list[list[float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, theirs = beside
    monkeypatch.chdir(path.parent)
    figures = path.with_suffix(f".{strategy}.{ranks}.jsonl")
    asked = ["run", str(path), "--ranks", str(ranks), "--strategy", strategy, "--metrics", str(figures)]
    assert run([*asked, *(["--device", "cpu"] if real else ["--simulate"])]) == 0
    lines = [json.loads(line) for line in figures.read_text().splitlines()]
    ours = [[line.get("loss", line.get("eval.loss")), line.get("spread", line.get("eval.spread"))] for line in lines]
    assert np.allclose(ours, theirs, rtol=1e-12, atol=1e-15)
