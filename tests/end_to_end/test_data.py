"""`shardc run` on files as people have them: text beside numbers, labels to ignore, numbers that are none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_run import losses, shardc

pytestmark = pytest.mark.slow
TEXT = """\
dim batch = 4, seq = 2, inputs = 2, classes = 4

model Net {
  param w: [inputs, classes] = zeros()

  forward(x: [batch, seq, inputs]) -> [batch, seq, classes] {
    return x @ w
  }
}

strategy both {
  mesh dp = 2, mp = 2
  split batch over dp
  split classes over mp
}

train {
  model = Net()
  data = csv("a.csv", x: [batch, seq, inputs], label: i64[batch, seq] < classes, shuffle = false)
  loss = cross_entropy(model(x), label, ignore_index = -100)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""
HEAD = "id,x0,x1,x2,x3,label0,label1\n"


def write(folder: Path, rows: list[str], text: str = TEXT) -> None:
    (folder / "a.csv").write_text(HEAD + "".join(f'"row {at}, of text",{row}\n' for at, row in enumerate(rows)))
    (folder / "net.shard").write_text(text)


def run(folder: Path, ranks: int = 1) -> tuple[int, str]:
    text = (folder / "net.shard").read_text()
    if ranks == 1:
        (folder / "net.shard").write_text(text[: text.index("strategy")] + text[text.index("train") :])
    words = ("--device", "cpu", "--ranks", str(ranks), "--metrics", "m.jsonl")
    done = shardc("run", "net.shard", *words, folder=folder)
    return done.returncode, done.stderr or done.stdout


def test_labels_may_be_what_the_loss_ignores(tmp_path: Path) -> None:
    """Every rank divides by the labels that count in the whole batch: of weights that are zero the loss is log 4."""
    rows = ["1,2,3,4,0,-100", "1,2,3,4,-100,-100", "1,2,3,4,-100,-100", "1,2,3,4,1,2"]
    write(tmp_path, [*rows, *reversed(rows)])
    assert run(tmp_path, 4)[0] == 0
    first, second = losses(tmp_path / "m.jsonl")
    assert first == pytest.approx(math.log(4), rel=1e-6)
    assert second < first
    write(tmp_path, [*rows[:3], "1,2,3,4,1,-99"])
    code, said = run(tmp_path)
    assert code == 3
    assert said.startswith(
        "error[SH502]: `label` must be from 0 to 3, or -100; the line has -99 in column `label1`\n"
        f"  --> {tmp_path}/a.csv:5\n"
    ), said


def test_a_number_that_is_none_is_named_by_its_line(tmp_path: Path) -> None:
    write(tmp_path, ["1,2,3,4,0,1"] * 6 + ["1,2,nan,4,0,1", "1,2,3,4,0,1"])
    code, said = run(tmp_path, 4)
    assert code == 3
    assert said.startswith(
        f"error[SH506]: the loss is nan at step 2 (epoch 1): `x` is nan at [1, 0]\n  --> {tmp_path}/a.csv:8\nhelp: mend"
    ), said


def test_a_number_of_an_evaluation_is_named(tmp_path: Path) -> None:
    write(tmp_path, ["1,2,3,4,0,1"] * 4)
    np.savez(tmp_path / "b.npz", x=[[1, 2, 3, np.inf]], label=[[0, 1]])
    source = 'numpy("b.npz", x: [batch, seq, inputs], label: i64[batch, seq] < classes)'
    (tmp_path / "net.shard").write_text(TEXT.replace("  epochs", f"  eval = {source}\n  epochs"))
    code, said = run(tmp_path)
    assert code == 0
    assert f"`x` is inf at [1, 1] in example 0: {tmp_path}/b.npz" in said
