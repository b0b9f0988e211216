"""States under `recompute`: what runs again in backward moves them once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.curves import RunOf, figures

TEXT = """
use std.nn: BatchNorm2d, Linear

dim batch = 8, classes = 4, chan = 4

model Net {
  layer bn = BatchNorm2d(chan)
  layer fc = Linear(80, classes)

  forward(x: [batch, chan, 4, 5]) -> [batch, classes] {
    h = bn(x) |> relu
    return flatten(h, keep = batch) |> fc
  }
}

strategy channels {
  mesh c = 2
  split chan over c
  at bn: recompute
}

strategy examples {
  mesh dp = 2
  split batch over dp
  at bn: recompute
}

train {
  model = Net()
  data = random(x: [batch, chan, 4, 5], target: [batch, classes], batches = 2)
  eval = random(x: [batch, chan, 4, 5], target: [batch, classes], batches = 2, seed = 3)
  loss = mse_loss(model(x), target)
  optimizer = sgd(lr = 0.1)
  precision = f64
  steps = 3
}
"""


@pytest.mark.slow
def test_running_statistics_move_once_a_step(tmp_path: Path) -> None:
    runs = [RunOf("", 1), RunOf("channels", 2), RunOf("examples", 2)]
    found = figures(TEXT, runs, tmp_path)
    alone = found[runs[0]].evaluations[-1]["eval.loss"]
    for run in runs[1:]:
        assert found[run].evaluations[-1]["eval.loss"] == pytest.approx(alone, rel=1e-12)
