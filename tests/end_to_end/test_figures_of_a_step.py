"""`lr` and `grad_norm` in metrics, beside a loop of torch: the same numbers under every strategy, in float64."""

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

model Net {
  layer up = Linear(d, wide)
  layer down = Linear(wide, d)

  forward(x: [batch, d]) -> [batch, d] {
    h = up(x) |> tanh
    return down(h)
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
}

strategy staged {
  mesh pp = 2, dp = auto
  split batch over dp
  stages over pp {
    0: up
    1: down
  }
  microbatches 2
}

train {
  model = Net()
  data = numpy("d.npz", x: [batch, d], y: [batch, d], shuffle = false)
  eval = numpy("d.npz", x: [batch, d], y: [batch, d])
  out = model(x)
  penalty = mean(square(model.h))
  loss = mse_loss(out, y) + 0.1 * penalty
  metric error = mean(abs(out - y))
  metric rate = lr
  metric moved = lr * grad_norm
  metric steep = sqrt(grad_norm) / (1 + exp(penalty)) + loss
  optimizer = sgd(lr = 0.1)
  lr_schedule = linear(warmup = 2, min = 0.02)
  clip = 0.5
  precision = f64
  init = safetensors("w.safetensors")
  steps = 4
}
"""
RANDOM = "random(x: [batch, d], y: [batch, d], batches = 100)"
NAMES = ("loss", "error", "rate", "moved", "steep", "lr", "grad_norm")


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, float]]]:
    """The program with its data and weights, and torch's figures of each step."""
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("figures")
    up, down = torch.nn.Linear(4, 8).double(), torch.nn.Linear(8, 4).double()
    parts = {"up.weight": up.weight, "up.bias": up.bias, "down.weight": down.weight, "down.bias": down.bias}
    save_file({name: part.detach() for name, part in parts.items()}, folder / "w.safetensors")
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    np.savez(folder / "d.npz", x=x.numpy(), y=y.numpy())
    (folder / "p.shard").write_text(PROGRAM, "utf-8")
    optimizer, theirs = torch.optim.SGD(parts.values(), lr=0.1), []
    for lr in (0.05, 0.1, 0.06, 0.02):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        h = torch.tanh(up(x))
        out, penalty = down(h), h.square().mean()
        loss = F.mse_loss(out, y) + 0.1 * penalty
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(list(parts.values()), 0.5))
        optimizer.step()
        steep = norm**0.5 / (1 + penalty.exp().item()) + loss.item()
        figures = (loss.item(), (out - y).abs().mean().item(), lr, lr * norm, steep, lr, norm)
        theirs.append(dict(zip(NAMES, figures, strict=True)))
    return folder / "p.shard", theirs


@pytest.mark.parametrize(("strategy", "ranks", "real"), [
    ("data", 1, True), ("data", 4, False), ("columns", 2, True), ("columns", 4, False), ("rows", 2, True),
    ("rows", 4, False), ("staged", 2, True), ("staged", 4, True), ("staged", 4, False),
])  # fmt: skip
def test_they_are_those_of_torch(
    strategy: str, ranks: int, real: bool, beside: tuple[Path, list[dict[str, float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, theirs = beside
    monkeypatch.chdir(path.parent)
    figures = path.with_suffix(f".{strategy}.{ranks}.{real}.jsonl")
    asked = ["run", str(path), "--ranks", str(ranks), "--strategy", strategy, "--metrics", str(figures)]
    assert run([*asked, *(["--device", "cpu"] if real else ["--simulate"])]) == 0
    lines = [json.loads(line) for line in figures.read_text().splitlines()]
    steps, tests = [line for line in lines if "step" in line], [line for line in lines if "step" not in line]
    assert [{name: line[name] for name in NAMES} for line in steps] == [
        pytest.approx(each, rel=1e-12) for each in theirs
    ]
    assert all(set(line) <= {"step", "epoch", *NAMES, "step_ms"} for line in steps)
    # An evaluation has no step, and so no rate and no gradients.
    assert [set(line) for line in tests] == [{"epoch", "eval.loss", "eval.error"}] * 4


def test_without_clip_the_norm_is_measured_because_a_metric_asks(
    beside: tuple[Path, list[dict[str, float]]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where nobody reads more than a live line, in each step."""
    path, theirs = beside
    monkeypatch.chdir(path.parent)
    path.with_name("q.shard").write_text(PROGRAM.replace("  clip = 0.5\n", ""), "utf-8")
    assert run(["run", "q.shard", "--ranks", "2", "--device", "cpu", "--strategy", "data"]) == 0
    first = f"moved {theirs[0]['moved']:<9.6g}"
    assert first in capfd.readouterr().out


@pytest.mark.parametrize("clip", ["  clip = 0.5\n", ""])
def test_every_line_that_stays_has_the_norm(
    clip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where steps are so short that figures of several are summed at once."""
    text = PROGRAM.replace("  clip = 0.5\n", clip).replace("steps = 4", "steps = 40")
    text = text.replace('numpy("d.npz", x: [batch, d], y: [batch, d], shuffle = false)', RANDOM)
    left_out = ("eval =", "metric", "init =")
    lines = [line for line in text.splitlines() if not any(word in line for word in left_out)]
    monkeypatch.chdir(tmp_path)
    Path("q.shard").write_text("\n".join(lines), "utf-8")
    assert run(["run", "q.shard", "--ranks", "2", "--device", "cpu", "--strategy", "data"]) == 0
    steps = [line for line in capfd.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(steps) == 8 and all("grad_norm" in line for line in steps), steps
