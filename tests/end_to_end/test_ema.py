"""`ema = 0.9`: the average of the weights, beside that of torch.optim.swa_utils, under every way to keep parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from shardlang.folds.memory import memory
from tests.cli.process import shardc
from tests.emit.sources import planned

pytestmark = pytest.mark.slow

PROGRAM = """
use std.nn: Linear

dim batch = 8, d = 6, hidden = 10, classes = 4

model Net {
  layer up = Linear(d, hidden)
  layer down = Linear(hidden, classes)

  forward(x: [batch, d]) -> [batch, classes] {
    h = tanh(up(x))
    return down(h)
  }
}

strategy data {
  mesh dp = auto
  split batch over dp
}

strategy wide {
  mesh mp = auto
  split hidden over mp
}

strategy rows2 {
  mesh dp = auto
  split batch over dp
  zero 2 over dp
}

strategy rows3 {
  mesh dp = auto
  split batch over dp
  zero 3 over dp
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
  data = numpy("d.npz", x: [batch, d], label: i64[batch] < classes, shuffle = false)
  eval = numpy("e.npz", x: [batch, d], label: i64[batch] < classes)
  scores = model(x)
  loss = cross_entropy(scores, label)
  optimizer = adam(lr = 0.05)
  ema = 0.9
  evaluate = every(4, weights = ema)
  checkpoint = every(4, to = "kept")
  init = safetensors("w.safetensors")
  precision = f64
  steps = 8
}
"""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, float], dict[str, torch.Tensor]]:
    """The program with its data; of torch the loss of `eval` by the average after steps 4 and 8, the last average."""
    folder, generator = tmp_path_factory.mktemp("ema"), torch.Generator().manual_seed(4)
    torch.manual_seed(3)
    model = torch.nn.ModuleDict({"up": torch.nn.Linear(6, 10), "down": torch.nn.Linear(10, 4)}).double()
    save_file({name: value.detach().clone() for name, value in model.state_dict().items()}, folder / "w.safetensors")
    sets = {}
    for name, size in (("d", 24), ("e", 16)):
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
        sets[name] = x, torch.randint(0, 4, (size,), generator=generator)
        np.savez(folder / f"{name}.npz", x=sets[name][0].numpy(), label=sets[name][1].numpy())

    def loss(net: Any, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net["down"](net["up"](x).tanh()), label)

    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer, judged = torch.optim.Adam(model.parameters(), lr=0.05), {}
    for step in range(8):
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
        optimizer.zero_grad()
        loss(model, sets["d"][0][rows], sets["d"][1][rows]).backward()
        optimizer.step()
        average.update_parameters(model)
        if step % 4 == 3:
            judged[step + 1] = loss(average.module, *sets["e"]).item()
    (folder / "p.shard").write_text(PROGRAM)
    return folder, judged, {name: value.detach() for name, value in average.module.state_dict().items()}


def train(folder: Path, strategy: str, ranks: int, kept: str, *words: str) -> list[dict[str, Any]]:
    given = ["--set", f'train.checkpoint.to="{kept}"', "--metrics", f"{kept}.jsonl", "--log-dir", f"{kept}-logs"]
    done = shardc("run", "p.shard", "--ranks", str(ranks), "--strategy", strategy, "--device", "cpu", *given,
                  *words, folder=folder)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [json.loads(line) for line in (folder / f"{kept}.jsonl").read_text().splitlines()]


def averages(folder: Path, kept: str) -> dict[str, torch.Tensor]:
    to = folder / f"{kept}.safetensors"
    to.unlink(missing_ok=True)
    done = shardc("convert", kept, "--to", "safetensors", "--ema", "-o", str(to), folder=folder)
    assert done.returncode == 0, done.stderr
    return load_file(to)


CASES = [("data", 1), ("data", 2), ("wide", 2), ("rows2", 2), ("rows2", 4), ("rows3", 2), ("rows3", 4), ("staged", 4)]


@pytest.mark.parametrize(("strategy", "ranks"), CASES)
def test_it_is_the_average_of_torch(strategy: str, ranks: int, beside: Any) -> None:
    """That of each parameter after 8 steps, and the evaluations by it, which change nothing of the training."""
    folder, judged, theirs = beside
    kept = f"{strategy}-{ranks}"
    found = train(folder, strategy, ranks, kept)
    assert {x["step"]: x["eval.loss"] for x in found if "eval.loss" in x} == pytest.approx(judged, rel=1e-12)
    ours = averages(folder, kept)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-14)
    plain = train(folder, strategy, ranks, f"{kept}-plain", "--set", "train.evaluate.steps=4000")
    losses = [[x["loss"] for x in lines if "loss" in x] for lines in (found, plain)]
    assert losses[0] == losses[1] and len(losses[0]) == 8


@pytest.mark.parametrize(
    ("first", "then"), [(("rows3", 4), ("data", 1)), (("wide", 2), ("rows2", 4)), (("data", 1), ("staged", 4))]
)
def test_a_run_goes_on_with_it_under_another_strategy(first: Any, then: Any, beside: Any, tmp_path: Path) -> None:
    folder, judged, theirs = beside
    kept = f"on-{first[0]}-{then[0]}"
    train(folder, *first, kept, "--set", "train.steps=4")
    before = averages(folder, kept)
    found = train(folder, *then, kept, "--resume")
    assert {x["step"]: x["eval.loss"] for x in found if "eval.loss" in x} == pytest.approx(judged, rel=1e-12)
    for name, value in averages(folder, kept).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-12, atol=1e-14)
    # What was saved is what is read: written again at once under the other layout, no bit differs.
    (folder / kept / "step-8").rename(folder / f"{kept}-8")
    train(folder, *then, kept, "--resume", "--set", "train.steps=4")
    assert all(torch.equal(value, before[name]) for name, value in averages(folder, kept).items())


@pytest.mark.parametrize(("strategy", "ranks"), [("data", 1), ("rows2", 2), ("rows3", 2)])
def test_an_evaluation_by_it_leaves_copies_in_bf16_as_they_were(strategy: str, ranks: int, beside: Any) -> None:
    folder, *_ = beside
    low, losses = ("--set", "train.precision=bf16"), []
    for name, every in ((f"low-{strategy}", 1), (f"low-{strategy}-plain", 4000)):
        found = train(folder, strategy, ranks, name, *low, "--set", f"train.evaluate.steps={every}")
        losses.append([x["loss"] for x in found if "loss" in x])
        assert sum("eval.loss" in x for x in found) == (8 if every == 1 else 1)
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("ema = 0.9\n", "ema = 1.0\n", "above 0 and below 1"), ("ema = 0.9\n", "", "no average of the weights to"),
        ("weights = ema", "weights = best", "`best` is nothing to evaluate"),
    ],
)  # fmt: skip
def test_mistakes(old: str, new: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "p.shard").write_text(PROGRAM.replace(f"  {old}" if not new else old, new))
    done = shardc("check", "p.shard", folder=tmp_path)
    assert done.returncode == 1 and "SH237" in done.stdout and told in done.stdout, done.stdout


@pytest.mark.parametrize(("strategy", "ranks"), [("rows3", 2), ("data", 1)])
def test_predict_takes_the_averages(strategy: str, ranks: int, beside: Any) -> None:
    folder, _, theirs = beside
    if not (folder / "data-2").exists():
        train(folder, "data", 2, "data-2")
    words = ("--checkpoint", "data-2", "--value", "scores", "--device", "cpu", "--log-dir", "predict-logs")
    arrays = {}
    for name, more in (("plain", ()), ("ema", ("--ema",))):
        done = shardc("predict", "p.shard", "--ranks", str(ranks), "--strategy", strategy, *words, *more,
                      "--out", f"{name}.npz", folder=folder)  # fmt: skip
        assert done.returncode == 0, done.stderr
        arrays[name] = np.load(folder / f"{name}.npz")["scores"]
    assert "averages of parameters of" in done.stdout
    x = torch.from_numpy(np.load(folder / "e.npz")["x"])
    h = (x @ theirs["up.weight"].T + theirs["up.bias"]).tanh()
    expected = h @ theirs["down.weight"].T + theirs["down.bias"]
    np.testing.assert_allclose(arrays["ema"], expected.numpy(), rtol=1e-10, atol=1e-12)
    assert not np.allclose(arrays["plain"], arrays["ema"], rtol=1e-3)


@pytest.mark.parametrize(("strategy", "parts"), [("data", 1), ("rows3", 2)])
def test_the_plan_counts_it(strategy: str, parts: int) -> None:
    """A further f64 of each parameter, or of its rows."""
    text = PROGRAM.replace("hidden = 10", "hidden = 8").replace("d = 6", "d = 4")
    plain = text.replace("  ema = 0.9\n", "").replace(", weights = ema", "")
    one, other = (memory(planned(t, 2, strategy)).optimizer for t in (plain, text))
    assert one > 0 and other * 2 == one * 3


def test_a_checkpoint_without_it_is_told(beside: Any, tmp_path: Path) -> None:
    folder, *_ = beside
    text = (folder / "p.shard").read_text()
    (folder / "without.shard").write_text(text.replace("  ema = 0.9\n", "").replace(", weights = ema", "")
                                          .replace('"kept"', '"without"'))  # fmt: skip
    assert shardc("run", "without.shard", "--ranks", "1", "--log-dir", "w-logs", folder=folder).returncode == 0
    given = ("p.shard", "--ranks", "1", "--set", 'train.checkpoint.to="without"')
    done = shardc("run", *given, "--resume", "--log-dir", "w-logs", folder=folder)
    assert done.returncode == 3 and "error[SH508]" in done.stderr and "`ema`" in done.stderr
    done = shardc("check", *given, "--resume", "without", folder=folder)
    assert done.returncode == 1 and "(which keeps 3 tensors)" in done.stdout, done.stdout + done.stderr
    predict = "predict p.shard --ranks 1 --checkpoint without --ema --out n.npz"
    for words in ("convert without --to safetensors --ema -o none.st", predict):
        done = shardc(*words.split(), folder=folder)
        assert done.returncode and "the checkpoint has no average of the weights" in done.stderr, done.stderr
