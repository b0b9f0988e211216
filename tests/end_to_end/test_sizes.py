"""Parts cut by hand on real ranks: curves, evaluations, saved and loaded weights, tables kept as rows, ZeRO."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.end_to_end.curves import Figures, RunOf, figures
from tests.end_to_end.test_curves import ALONE, compare
from tests.end_to_end.test_forms import same_evaluations

pytestmark = pytest.mark.slow

PROGRAM = """\
dim batch = 12, seq = 4, vocab = 32, width = 6

model Net {
  param table: [vocab, width] = normal(1.0)
  param head: [vocab, width] = normal(1.0)
  param bias: [vocab] = normal(1.0)

  forward(ids: i64[batch, seq]) -> [batch, seq, vocab] {
    rows = embedding(ids, table)
    return einsum(tanh(rows), head -> [batch, seq, vocab]) + bias
  }
}

strategy tables {
  mesh mp = 3
  split vocab over mp sizes (4, 20, 8)
}

strategy both {
  mesh dp = 2, mp = 3
  split batch over dp sizes (5, 7)
  split vocab over mp sizes (0, 30, 2)
  zero 2 over dp
}

strategy looked_up {
  mesh mp = 2
  at table, rows: split vocab over mp sizes (30, 2)
}

train {
  model = Net()
  data = random(ids: i64[batch, seq] < vocab, label: i64[batch, seq] < vocab, batches = 4, seed = 1)
  eval = random(ids: i64[batch, seq] < vocab, label: i64[batch, seq] < vocab, batches = 2, seed = 2)
  scores = model(ids)
  loss = cross_entropy(scores, label)
  metric right = mean(argmax(scores, over = vocab) == label)
  optimizer at table = adagrad(lr = 0.1)
  optimizer = adamw(lr = 0.01)
  epochs = 2
}
"""
RUNS = [RunOf("tables", 3), RunOf("both", 6), RunOf("looked_up", 2)]


def same_weights(found: dict[RunOf, Figures]) -> None:
    theirs = load_file(found[ALONE].weights)
    for run, figure in found.items():
        mine = load_file(figure.weights)
        assert mine.keys() == theirs.keys()
        for name, weight in mine.items():
            torch.testing.assert_close(weight, theirs[name], rtol=1e-4, atol=1e-5, msg=f"{run.name} {name}")


def test_parts_cut_by_hand(tmp_path: Path) -> None:
    found = figures(PROGRAM, [ALONE, *RUNS], tmp_path)
    compare(found, 1e-5)
    same_evaluations(found, 1e-5)
    same_weights(found)


def test_weights_are_read_into_parts_cut_by_hand(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    weights = figures(PROGRAM, [RunOf("tables", 3)], first)[RunOf("tables", 3)].weights
    text = PROGRAM.replace("epochs = 2", f'epochs = 1\n  init = safetensors("{weights}")')
    found = figures(text, [ALONE, *RUNS], tmp_path)
    compare(found, 1e-5)
    same_weights(found)
