"""Dims that are cut unevenly, and by which other names operators call them."""

from __future__ import annotations

from tests.emit.sources import planned
from tests.interpret.verify_plan import verify_plan

RELABELLED = """
dim batch = 12, seq = 3, width = 2, hidden = 3

model Net {
  param p: [hidden * seq] = normal(1.0)

  forward(x: [batch, seq, width]) {
    turned = rearrange(x -> [batch, width, seq])
    keys = relabel(turned -> [batch, width, hidden])
    scores = x @ keys
    merged = rearrange(scores -> [batch, hidden * seq])
    return merged * p
  }
}

strategy s {
  mesh tp = 2, mp = 2
  split hidden over tp uneven
  at train.out: split batch over mp
}

train {
  model = Net()
  data = random(x: [batch, seq, width], target: [batch, hidden * seq], batches = 2)
  out = model(x)
  loss = mse_loss(out, target)
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""

# A layer's `...` takes the product of width and hidden as one.
AS_ONE = """
use std.nn: Dropout

dim batch = 8, width = 3, hidden = 5

model Net {
  layer drop = Dropout(0.1)
  param p: [width] = normal(0.3)

  forward(x: [batch, hidden, width]) -> [batch, hidden, width] {
    y = drop(rearrange(x -> [batch, width * hidden]))
    return x * p + mean(square(y))
  }
}

strategy s {
  mesh b = 6
  split width over b uneven
}

train {
  model = Net()
  data = random(x: [batch, hidden, width], batches = 2)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""


def test_a_dim_is_uneven_by_each_of_its_names() -> None:
    """`relabel` makes hidden of seq, so what is cut as hidden is cut as seq before it."""
    report = verify_plan(planned(RELABELLED, 4))
    assert report.ok, str(report.difference)


def test_a_product_is_whole_where_a_dim_of_it_is_cut_unevenly() -> None:
    report = verify_plan(planned(AS_ONE, 6))
    assert report.ok, str(report.difference)
