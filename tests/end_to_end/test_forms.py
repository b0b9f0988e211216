"""Programs that use what the examples do not: sizes that do not divide, two factorings, permutations, states, totals
of `eval` with terms that do not depend on the batch, a layer called twice, names that Python keeps for itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.curves import Figures, RunOf, figures
from tests.end_to_end.test_curves import ALONE, compare

pytestmark = pytest.mark.slow

CHAIN = """\
dim batch = 36, n = 36, k = 36, m = 36

model Chain {
  param w: [n, k] = normal(0.1)
  param v: [k, m] = normal(0.1)

  forward(x: [batch, n]) -> [batch, m] {
    y = x @ w
    r = relu(y)
    lambda = r @ v
    return lambda
  }
}

strategy factored {
  at y: shard ((2, 3), (3, 1))
  at lambda: shard ((3, 2), (2, 1))
}

strategy crossed {
  at y: shard ((2, 1), (1, 3))
  at lambda: shard ((3, 1), (1, 2))
}

strategy reordered {
  mesh a = 2, b = 3
  at y: [batch@(a, b), k]
  at lambda: [batch@(b, a), m]
}

strategy exchanged {
  mesh a = 2, b = 2
  at y: [batch@a, k@b]
  at r: [batch@b, k@a]
}

strategy chunks {
  mesh dp = 2, mp = 5
  split batch over dp
  split k over mp uneven
}

train {
  model = Chain()
  data = random(x: [batch, n], label: [batch, m], batches = 3, seed = 1)
  eval = random(x: [batch, n], label: [batch, m], batches = 2, seed = 2)
  y = model(x)
  loss = mse_loss(y, label) + 0.01 * sum(square(model.w))
  metric distance = sqrt(mean(square(y - label)))
  metric size = sum(square(model.v))
  optimizer = adamw(lr = 0.01)
  epochs = 2
}
"""


def same_evaluations(found: dict[RunOf, Figures], tolerance: float) -> None:
    for run, figure in found.items():
        assert len(figure.evaluations) == len(found[ALONE].evaluations) > 0
        for mine, theirs in zip(figure.evaluations, found[ALONE].evaluations, strict=True):
            assert mine == pytest.approx(theirs, rel=tolerance), run.name


def test_factorings_orders_and_uneven_sizes(tmp_path: Path) -> None:
    counts = {"factored": 6, "crossed": 6, "reordered": 6, "exchanged": 4, "chunks": 10}
    runs = [RunOf(strategy, ranks) for strategy, ranks in counts.items()]
    found = figures(CHAIN, [ALONE, *runs], tmp_path)
    compare(found, 1e-6)
    same_evaluations(found, 1e-5)


NORMAL = """\
use std.nn: BatchNorm2d, Conv2d, LayerNorm, Linear

dim batch = 24, channels = 8, classes = 6

model Net {
  layer first = Conv2d(1, channels, kernel = 5)
  layer norm = BatchNorm2d(channels)
  layer flat = Linear(4608, classes)
  layer twice = Linear(classes, classes)
  layer last = LayerNorm(classes)

  forward(image: [batch, 1, 28, 28]) -> [batch, classes] {
    a = first(image) |> norm |> relu
    b = flatten(a, keep = batch) |> flat |> relu
    c = twice(b) |> twice
    return last(c)
  }
}

strategy dp {
  mesh dp = auto
  split batch over dp
}

strategy mp {
  mesh dp = 2, mp = auto
  split batch over dp
  split channels over mp
}

strategy spread {
  mesh dp = auto
  split batch over dp
  zero 2 over dp
}

train {
  model = Net()
  data = random(image: [batch, 1, 28, 28], label: i64[batch] < classes, batches = 3, seed = 4)
  eval = random(image: [batch, 1, 28, 28], label: i64[batch] < classes, batches = 1, seed = 5)
  scores = model(image)
  loss = cross_entropy(scores, label, label_smoothing = 0.1)
  metric accuracy = mean(argmax(scores, over = classes) == label)
  optimizer = sgd(lr = 0.05, momentum = 0.9, nesterov = true)
  clip = 1.0
  epochs = 2
}
"""


def test_states_norms_and_clip(tmp_path: Path) -> None:
    runs = [RunOf("dp", 3), RunOf("mp", 4), RunOf("spread", 2)]
    found = figures(NORMAL, [ALONE, *runs], tmp_path)
    compare(found, 1e-5)
    same_evaluations(found, 1e-5)
