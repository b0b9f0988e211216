"""A gradient that is no number beside a finite loss: no weights are made of it, under any strategy."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from shardlang import runtime as rt
from shardlang.checkpoints import folders
from shardlang.checkpoints.index import SavedLayout
from shardlang.errors import RunError
from shardlang.runtime.logs import Log
from shardlang.runtime.state import checkpoints
from shardlang.runtime.state.checkpoints import Checkpoints, Piece, SavedRun
from shardlang.runtime.step.gradients import StepGradients
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.cli.process import shardc

# A row of zeros has a finite loss, and a gradient of nan: the root of 0.
PROGRAM = """
dim batch = 4, inputs = 6, d = 4

model Net {
  param w: [inputs, d] = normal(0.5)
  param v: [d] = normal(0.5)

  forward(x: [batch, inputs]) -> [batch] {
    h = x @ w
    u = h * v
    return sqrt(sum(square(u), over = d))
  }
}

strategy data {
  mesh dp = auto
  split batch over dp
}

strategy columns {
  mesh mp = auto
  split d over mp
}

strategy rows {
  mesh dp = auto
  split batch over dp
  zero LEVEL over dp
}

strategy staged {
  mesh pp = 2
  stages over pp {
    0: h
    1: u
  }
  microbatches 2
}

train {
  model = Net()
  data = numpy("train.npz", x: [batch, inputs], y: [batch], shuffle = false)
  loss = 0.1 * mse_loss(model(x), y)
  optimizer = adam(lr = 0.1)
  optimizer at v = sgd(lr = 0.1, momentum = 0.9)
  checkpoint = every(1, keep = 1, to = "kept")
  precision = f64
  MORE
}
"""
STRATEGIES = {
    "data": ("data", "1"), "columns": ("columns", "1"), "staged": ("staged", "1"),
    **{f"zero {level}": ("rows", level) for level in "123"},
}  # fmt: skip


def written(folder: Path, more: str, level: str = "1", broken: int = 9, examples: int = 12) -> Path:
    """A program and its data, of whose rows one is zeros: with 12 examples it is in the last of three steps."""
    folder.mkdir(exist_ok=True)
    x = np.random.default_rng(1).standard_normal((examples, 6))
    x[broken] = 0.0
    np.savez(folder / "train.npz", x=x, y=np.ones(examples))
    (folder / "p.shard").write_text(PROGRAM.replace("MORE", more).replace("LEVEL", level))
    return folder


def records(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_run_ends_and_the_good_checkpoint_stays(tmp_path: Path, name: str) -> None:
    strategy, level = STRATEGIES[name]
    folder = written(tmp_path, "epochs = 1", level)
    words = ("p.shard", "--ranks", "2", "--strategy", strategy, "--save-weights", "w.safetensors")
    done = shardc("run", *words, folder=folder)
    assert done.returncode == 3, done.stdout
    assert "error[SH506]: the gradients are not finite at step 3 (epoch 1): their norm is nan" in done.stderr
    assert "the gradient of" in done.stderr and "in step 3" in done.stderr, done.stderr
    assert "not_finite = skip" in done.stderr
    assert [path.name for path in (folder / "kept").iterdir()] == ["step-2"]
    assert not (folder / "w.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["f64", "f16"])
def test_a_step_is_left_out_on_all_ranks_alike(tmp_path: Path, precision: str) -> None:
    """Under each strategy the run ends with the weights of one rank, and says what it left out."""
    more = "not_finite = skip\n  clip = 0.5\n  epochs = 2"
    found = {}
    for name, (strategy, level) in {"alone": ("data", "1"), **STRATEGIES}.items():
        folder = written(tmp_path / name, more, level, broken=5)
        text = (folder / "p.shard").read_text().replace("precision = f64", f"precision = {precision}")
        (folder / "p.shard").write_text(text)
        ranks = "1" if name == "alone" else "2"
        words = ("--ranks", ranks, "--strategy", strategy, "--save-weights", "w.safetensors", "--metrics", "m.jsonl")
        done = shardc("run", "p.shard", *words, folder=folder)
        assert done.returncode == 0, done.stderr
        assert [step for step in range(1, 7) if f"step {step} updates nothing: a gradient is" in done.stdout] == [2, 5]
        assert "2 of 6 steps updated nothing, as their gradients were not finite" in done.stdout
        lines = records(folder / "m.jsonl")
        assert [line["skipped"] for line in lines] == [0, 1, 1, 1, 2, 2]
        assert [line["step"] for line in lines if "grad_norm" not in line] == [2, 5]
        found[name] = load_file(folder / "w.safetensors"), [line["loss"] for line in lines]
    weights, losses = found["alone"]
    assert all(np.isfinite(w).all() for w in weights.values()) and losses[1] != losses[4]
    room = 1e-12 if precision == "f64" else 2e-2
    for other, figures in found.values():
        assert figures == pytest.approx(losses, rel=room)
        assert all(np.allclose(other[path], w, rtol=room, atol=room) for path, w in weights.items())


SOURCE = """
import numpy as np


class Rows:
    \"\"\"Example 41 has a number that is none.\"\"\"

    def __len__(self):
        return 48

    def __getitem__(self, i):
        x = np.random.default_rng(i).standard_normal(6)
        if i == 41:
            x[2] = np.nan
        return {"x": x, "y": np.float64(1.0)}
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data", "columns", "staged"])
def test_a_batch_of_a_source_of_ones_own_is_looked_at(tmp_path: Path, strategy: str) -> None:
    folder = written(tmp_path, "epochs = 1")
    (folder / "source.py").write_text(SOURCE)
    declared = 'source rows() -> (x: [batch, 6], y: [batch]) {\n  python "source.py": Rows\n}\n'
    (folder / "source.shard").write_text(declared)
    text = (folder / "p.shard").read_text()
    start, end = text.index("numpy("), text.index("shuffle = false)")
    text = f"{text[:start]}rows(batch = batch, {text[end:]}"
    (folder / "p.shard").write_text(f'use "./source.shard": rows\n{text}')
    done = shardc("run", "p.shard", "--ranks", "2", "--strategy", strategy, folder=folder)
    assert done.returncode == 3, done.stdout
    assert "error[SH506]: the loss is nan at step 11 (epoch 1): `x` is nan at [2] in example 41" in done.stderr
    assert "give a number there, or leave the example out" in done.stderr


def test_a_checkpoint_with_numbers_that_are_none_is_not_written(tmp_path: Path) -> None:
    """The one before it stays. What an optimizer keeps may be infinite, and a mask may be anything."""
    kept = Checkpoints(tmp_path, 1, 1)
    layouts = {name: SavedLayout("F32", (2,), [[2]], [0]) for name in ("w", "w:square", "mask")}
    facts = {"optimizers": {"w": "adam"}}

    def write(step: int, w: float, square: float = 1.0) -> None:
        numbers = {"w": w, "w:square": square, "mask": float("nan")}
        pieces = [Piece(name, (2,), (0,), torch.tensor([0.0, x])) for name, x in numbers.items()]
        kept.write(step, pieces, layouts, facts)
        kept.wait()

    write(1, 2.0, float("inf"))
    for given, what in (((float("nan"),), "`w` is nan at [1]"), ((float("inf"),), "`w` is inf at [1]"),
                        ((1.0, float("nan")), "`w:square` is nan at [1]")):  # fmt: skip
        with pytest.raises(RunError, match=re.escape(f"no checkpoint is written, as {what}")) as caught:
            write(2, *given)
        assert caught.value.code == "SH506" and "the checkpoints before it stay" in caught.value.help
        assert folders.kept(tmp_path).keys() == {1}
        kept = Checkpoints(tmp_path, 1, 1)


@pytest.mark.slow
def test_a_run_does_not_go_on_from_numbers_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version may have written them: the run goes on from the checkpoint before."""
    folder = written(tmp_path, "epochs = 1", examples=16, broken=15)
    text = (folder / "p.shard").read_text().replace("keep = 1", "keep = 3")
    (folder / "p.shard").write_text(text)
    assert shardc("run", "p.shard", "--ranks", "2", folder=folder).returncode == 3
    newest = folder / "kept" / "step-3"
    run = SavedRun(newest)
    layouts, facts = run.tensors, dict(run.facts)
    pieces = []
    for name, layout in layouts.items():
        whole = torch.zeros(layout.shape, dtype=torch.float64)
        run.read([Piece(name, tuple(layout.shape), (0,) * len(layout.shape), whole)])
        pieces.append(Piece(name, tuple(layout.shape), (0,) * len(layout.shape), whole))
    next(piece.local for piece in pieces if piece.name == "w")[3, 1] = float("nan")
    alone = {n: SavedLayout(x.dtype, x.shape, [[size] for size in x.shape], [0]) for n, x in layouts.items()}
    monkeypatch.setattr(checkpoints, "not_finite", lambda *_: "")
    shutil.rmtree(newest)
    kept = Checkpoints(folder / "kept", 1, 0)
    kept.write(3, pieces, alone, facts)
    kept.wait()
    again = shardc("run", "p.shard", "--ranks", "2", "--resume", folder=folder)
    assert "step-3 is passed over: `w` is nan at [3, 1]" in again.stdout
    assert "goes on after step 2" in again.stdout


def test_a_step_that_is_left_out_moves_no_state() -> None:
    program = rt.Program("", "", 1, rt.Mesh(), [], rt.Source("random", batch=1, fields=[]), [], not_finite="skip")
    w, counts = torch.zeros(2, requires_grad=True), torch.zeros(3)
    found = StepGradients(program, [w], [w], True, {"counts": counts})
    for gradient, fits in ((1.0, True), (float("nan"), False), (float("-inf"), False), (2.0, True)):
        before = counts.clone()
        found.begin()
        counts.add_(1)  # as forward does
        w.grad = torch.tensor([0.0, gradient])
        assert found.fit() is fits
        assert counts.tolist() == (before + fits).tolist()
    assert found.skipped == 2


def test_weights_that_no_figure_shows_are_looked_at_in_the_end(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(8.0))
    source = rt.Source("numpy", batch=4, path="a.npz", shuffle=False, fields=[rt.Field("x", "f32", (4,))])

    class Spoilt(Log):
        """Spoils a number that no loss reads, as a wrong update would, while the last step is told."""

        def step(self, step: int, *given: object, **more: object) -> None:
            run.model.trained["w"].data[1, step - 1] = float("nan")

    program = rt.Program(
        name="t.shard", strategy="", ranks=1, mesh=rt.Mesh(), parameters=[rt.Parameter("w", (2, 2), init="ones")],
        data=source, optimizers=[rt.Optimizer("sgd", lr=0.1)], base=tmp_path, epochs=1,
        forward=lambda p, x: ((p.w[0] * x[:2]).sum() / 4, {}),
    )  # fmt: skip
    run = TrainingRun(program, datasets(program), Spoilt(None, None))
    with pytest.raises(RunError, match=re.escape("`w` is nan at [1, 0] after step 2")) as caught:
        run.train()
    assert caught.value.code == "SH506"
