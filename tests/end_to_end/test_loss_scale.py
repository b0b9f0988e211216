"""`precision = f16`: the loss is scaled so that gradients in f16 neither vanish nor overflow; what overflows updates
nothing, on all ranks alike.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime.step.gradients import StepGradients
from shardlang.runtime.step.loss_scale import LossScale
from tests.cli.process import shardc
from tests.end_to_end.test_resume import records
from tests.end_to_end.test_resume import run as trained

PROGRAM = """

dim batch = 64, pixels = 64, hidden = 32, classes = 10

model Digits {
  param up: [pixels, hidden] = normal(1.0)
  param down: [hidden, classes] = normal(1.0)

  forward(image: [batch, pixels]) -> [batch, classes] {
    h = relu((0.01 * image) @ up)
    scores = h @ down
    return scores
  }
}

strategy rows {
  mesh dp = 2
  split batch over dp
  zero 1 over dp
}

strategy staged {
  mesh pp = 2
  stages over pp {
    0: h
    1: scores
  }
  microbatches 2
}

train {
  model = Digits()
  data = digits(split = "train", batch = batch)
  loss = FACTOR * cross_entropy(model(image), label)
  optimizer = adam(lr = 0.01)
  precision = f16
  checkpoint = every(4, to = "kept")
  steps = 8
}
"""
# The greatest gradient of the scores is a little less than 1 / 64 of the factors: those of 65,536 and 32,768 are too
# large. The greatest of `h` is about three times that, so two more are too large in the first stage alone.
LARGE = PROGRAM.replace("FACTOR", "200.0")


def parameter(*gradient: float) -> torch.Tensor:
    made = torch.zeros(len(gradient), requires_grad=True)
    made.grad = torch.tensor(gradient)
    return made


def fit(*trained: torch.Tensor) -> StepGradients:
    """The gradients of a rank in f16, after a step."""
    program = rt.Program("", "", 1, rt.Mesh(), [], rt.Source("random", batch=1, fields=[]), [], precision="f16")
    found = StepGradients(program, trained, trained, True, {})
    found.fit()
    return found


def test_a_gradient_is_divided_by_the_factor() -> None:
    one, none = parameter(65536.0, -32768.0), parameter()
    assert fit(one, none).skipped == 0
    assert one.grad is not None and one.grad.tolist() == [1.0, -0.5]


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_halves_the_factor(number: float) -> None:
    found = fit(parameter(1.0), parameter(0.0, number))
    assert found.scale is not None and found.skipped == 1
    assert (found.scale.factor, found.scale.fitting) == (32768.0, 0)


def test_the_factor_is_doubled_after_2000_steps_that_fit() -> None:
    scale = LossScale()
    for _ in range(1999):
        scale.next(True)
    assert scale.factor == 65536.0
    scale.next(True)
    assert (scale.factor, scale.fitting) == (131072.0, 0)


@pytest.mark.slow
def test_gradients_that_never_fit_end_the_run(tmp_path: Path) -> None:
    text = PROGRAM.replace("FACTOR", "1e9").replace("steps = 8", "steps = 30")
    (tmp_path / "p.shard").write_text(text)
    done = shardc("run", "p.shard", "--ranks", "1", folder=tmp_path)
    assert done.returncode != 0 and "error[SH506]: the gradients of step 17 are not finite in f16" in done.stderr


@pytest.mark.parametrize("kept", [{}, {"factor": 3.0, "fitting": 0}, {"factor": 4.0, "fitting": -1}, []])
def test_a_factor_that_is_none_is_refused(kept: dict[str, float]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        LossScale().resumed(kept)


@pytest.mark.slow
def test_ranks_leave_out_the_same_steps(tmp_path: Path) -> None:
    """Under ZeRO and in stages. A run that goes on has the factor that it had."""
    runs = {"alone": ("1", ""), "rows": ("2", "rows"), "staged": ("2", "staged")}
    said, losses = {}, {}
    for name, (ranks, strategy) in runs.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "p.shard").write_text(LARGE)
        words = ["--ranks", ranks, *(["--strategy", strategy] if strategy else []), "--metrics", "m.jsonl"]
        told = trained(folder, *words)
        said[name] = [line for line in told.splitlines() if "updates nothing" in line]
        losses[name] = [line["loss"] for line in records(folder / "m.jsonl")]
    assert said["alone"] == said["rows"] == said["staged"] == [
        f"step {step} updates nothing: a gradient is too large for f16; from now on the loss is multiplied by {factor}"
        for step, factor in ((1, 32768), (2, 16384), (3, 8192), (4, 4096))
    ]  # fmt: skip
    wide = tmp_path / "wide"
    wide.mkdir()
    (wide / "p.shard").write_text(LARGE.replace("precision = f16", "precision = f32"))
    trained(wide, "--ranks", "1", "--metrics", "m.jsonl")
    expected = [line["loss"] for line in records(wide / "m.jsonl")]
    for name, found in losses.items():
        assert found == pytest.approx(losses["alone"], rel=2e-3), name
        assert len(found) == 8 and found[-1] < found[0]
    assert losses["alone"][0] == pytest.approx(expected[0], rel=2e-3)

    # From the checkpoint of step 4 on, after a run that was stopped there.
    folder = tmp_path / "rows"
    shutil.rmtree(folder / "kept" / "step-8")
    trained(folder, "--ranks", "2", "--strategy", "rows", "--resume", "--metrics", "again.jsonl")
    again = [line["loss"] for line in records(folder / "again.jsonl") if line["step"] > 4]
    assert again == losses["rows"][4:]


@pytest.mark.slow
def test_small_gradients_do_not_vanish(tmp_path: Path) -> None:
    """A loss so small that its gradients in f16 would be zero: training goes on as in f32."""
    found, small = {}, PROGRAM.replace("FACTOR", "1e-6").replace("0.01 * image", "image")
    for precision in ("f16", "f32"):
        folder = tmp_path / precision
        folder.mkdir()
        (folder / "p.shard").write_text(small.replace("= f16", f"= {precision}"))
        done = shardc("run", "p.shard", "--ranks", "1", "--metrics", "m.jsonl", folder=folder)
        assert done.returncode == 0, done.stderr
        found[precision] = [line["loss"] for line in records(folder / "m.jsonl")]
    assert found["f16"] == pytest.approx(found["f32"], rel=5e-3)
    assert found["f32"][-1] < 0.97 * found["f32"][0]
