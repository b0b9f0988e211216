"""A run that is taken up again ends as one that was never interrupted, whatever strategy and rank count go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from shardlang.checkpoints.index import Index
from shardlang.checkpoints.parts import Parts
from tests.cli.process import shardc

PROGRAM = """
use std.nn: BatchNorm2d, Linear

dim batch = 64, pixels = 64, hidden = 32, classes = 10

model Digits {
  layer norm = BatchNorm2d(1)
  layer up = Linear(pixels, hidden)
  layer down = Linear(hidden, classes)

  forward(image: [batch, pixels]) -> [batch, classes] {
    picture = norm(rearrange(image -> [batch, 1, 1, pixels]))
    h = up(rearrange(picture -> [batch, pixels])) |> relu |> dropout(p = 0.1)
    return down(h)
  }
}

strategy whole {
  mesh dp = auto
  split batch over dp
}

strategy rows {
  mesh dp = auto
  split batch over dp
  zero %(zero)s over dp
}

strategy columns {
  mesh mp = auto
  split hidden over mp
}

train {
  model = Digits()
  data = digits(split = "train", batch = batch)
  eval = digits(split = "test", batch = batch)
  loss = cross_entropy(model(image), label)
  optimizer = %(optimizer)s
  lr_schedule = warmup_cosine(warmup = 15, min = 0.001)
  checkpoint = every(10, keep = 3, to = "kept")
  steps = 30
}
"""


# A strategy and the ranks it runs on.
Run = tuple[str, str]


def run(folder: Path, *words: str) -> str:
    done = shardc("run", "p.shard", *words, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def records(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("optimizer", "zero", "first", "then"),
    [
        ("sgd(lr = 0.1, momentum = 0.9)", 3, ("rows", "2"), ("columns", "2")),
        ("adamw(lr = 0.01)", 1, ("whole", "1"), ("rows", "4")),
        ("adam(lr = 0.01)", 2, ("rows", "3"), ("whole", "2")),
        ("adam(lr = 0.01)", 2, ("rows", "2"), ("rows", "2")),
    ],
)
def test_a_run_goes_on(tmp_path: Path, optimizer: str, zero: int, first: Run, then: Run) -> None:
    (tmp_path / "p.shard").write_text(PROGRAM % {"zero": zero, "optimizer": optimizer})
    batch = ("--set", "batch=60")  # which 2, 3 and 4 ranks can share
    run(tmp_path, "--strategy", first[0], "--ranks", first[1], *batch, "--metrics", "a.jsonl", "--save-weights", "a")
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["step-10", "step-20", "step-30"]
    # As if the run had died after step 25: figures are there that no checkpoint knows of.
    shutil.rmtree(tmp_path / "kept" / "step-30")
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    going_on = ("--metrics", "b.jsonl", "--save-weights", "b", "--resume")
    out = run(tmp_path, "--strategy", then[0], "--ranks", then[1], *batch, *going_on)
    assert "goes on after step 20" in out

    whole, taken_up = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl")
    assert [r.get("step") for r in taken_up] == [r.get("step") for r in whole]
    tolerance = 0.0 if first == then else 1e-5
    for one, other in zip(whole, taken_up, strict=True):
        assert {k: v for k, v in other.items() if k != "step_ms"} == pytest.approx(
            {k: v for k, v in one.items() if k != "step_ms"}, abs=tolerance
        )
    ours, theirs = load_file(tmp_path / "a"), load_file(tmp_path / "b")
    assert ours.keys() == theirs.keys()
    assert max(float(abs(ours[name] - theirs[name]).max()) for name in ours) <= tolerance * 10


def test_another_batch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.shard").write_text(PROGRAM % {"zero": 1, "optimizer": "sgd(lr = 0.1)"})
    run(tmp_path, "--strategy", "whole", "--ranks", "1")
    done = shardc("run", "p.shard", "--ranks", "1", "--resume", "--set", "batch=32", folder=tmp_path)
    assert done.returncode == 3
    assert "error[SH508]: `batch` is 32, and the checkpoint was written with 64" in done.stderr


def test_the_state_of_what_is_frozen_goes_from_layout_to_layout(tmp_path: Path) -> None:
    """Whatever ranks hold of it; and whoever trains it again goes on with it."""
    text = PROGRAM % {"zero": 3, "optimizer": "adamw(lr = 0.01)"}
    (tmp_path / "p.shard").write_text(text)
    run(tmp_path, "--strategy", "whole", "--ranks", "1", "--set", "train.steps=10")
    (tmp_path / "p.shard").write_text(text.replace("  optimizer", "  freeze at up, down.bias\n  optimizer"))
    for strategy, ranks, steps in (("rows", "2", 20), ("columns", "4", 30)):
        out = run(tmp_path, "--strategy", strategy, "--ranks", ranks, "--resume", "--set", f"train.steps={steps}")
        assert "keeps the optimizer's state of `" in out and "` and 2 more, frozen now: " in out
    before, after = (Parts(Index(tmp_path / "kept" / f"step-{step}")) for step in (10, 30))
    kept = [f"{path}:{name}" for path in ("up.weight", "up.bias", "down.bias") for name in ("mean", "square")]
    for name in kept:
        shape = before.index.tensors[name].shape
        first, last = (each.read(name, (0,) * len(shape), shape) for each in (before, after))
        assert first.any() and (first == last).all(), name
    (tmp_path / "p.shard").write_text(text)
    out = run(tmp_path, "--strategy", "rows", "--ranks", "2", "--resume", "--set", "train.steps=40")
    assert "goes on after step 30" in out
    assert Index(tmp_path / "kept" / "step-40").facts["updates"] == dict.fromkeys(
        ("up.weight", "up.bias", "down.bias"), 20
    )
