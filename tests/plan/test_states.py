"""States are stored as the operators that write them have them, whatever rules say of one or the other."""

from __future__ import annotations

import pytest

from tests.interpret.verify_plan import verify_plan
from tests.plan.test_uneven import planned

TEXT = """
dim batch = 12, input = 6, width = 4

model Normed {
  state mean: [width] = zeros()
  state variance: [width] = ones()

  forward(x: [batch, width]) -> [batch, width] {
    z = batch_norm(x, mean, variance)
    return z
  }
}

model Net {
  param w: [input, width] = normal(0.5)
  layer bn = Normed()

  forward(x: [batch, input]) -> [batch, width] {
    h = x @ w
    a = bn(h)
    b = tanh(a)
    c = bn(b)
    return c
  }
}

strategy s {
  RULES
}

train {
  model = Net()
  data = random(x: [batch, input], batches = 2)
  loss = mean(square(model(x) - 0.5))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


@pytest.mark.parametrize("rules", [
    "mesh c = 2\n  split batch over c\n  at bn.mean: [width]",
    "mesh c = 2\n  split batch over c\n  at bn.mean, bn.variance: [width@c]",
    "at h: shard ((4, 1), (1, 1))\n  at b: shard ((2, 2))",
    "mesh c = 2, d = 2\n  split batch over c\n  at b: [batch, width@d]",
    "mesh c = 2, d = 2\n  at b: split batch over d\n  at bn.variance: [width@c]",
    "at b: shard ((3, 2))\n  at h: shard ((2, 1), (1, 1))",
])  # fmt: skip
def test_a_state_of_two_calls_is_what_it_is_on_one_device(rules: str) -> None:
    ranks = 6 if "3" in rules else 4 if "d = 2" in rules or "shard" in rules else 2
    report = verify_plan(planned(TEXT.replace("RULES", rules), ranks), steps=2)
    assert report.ok, str(report.difference)
