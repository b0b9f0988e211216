"""Numbers written out beside values that are pending, or split on another factoring of the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.curves import RunOf, figures

TEXT = """
dim batch = 12, d = 12, e = 4

model Net {
  param w: [d, e] = normal(0.5)

  forward(x: [batch, d]) -> [batch, e] {
    h = x @ w
    y = h + 0.1
    z = 0.5 * y
    return z
  }
}

strategy pending {
  mesh mp = 2
  split batch over mp
  at h: [batch, e] +mp
  at y: [batch, e] +mp
}

strategy factorings {
  at h: shard ((2, 1), (1, 1))
  at y: shard ((3, 2))
  at z: shard ((3, 1))
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, e], batches = 2)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  precision = f64
  steps = 3
}
"""


@pytest.mark.slow
def test_numbers_are_moved_without_being_tensors(tmp_path: Path) -> None:
    alone, pending, factorings = RunOf("", 1), RunOf("pending", 2), RunOf("factorings", 6)
    found = figures(TEXT, [alone, pending, factorings], tmp_path)
    for run in (pending, factorings):
        assert found[run].curve() == pytest.approx(found[alone].curve(), rel=1e-12)
