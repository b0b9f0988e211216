"""`Linear(d, d)`: its weight has one dim twice. Its dims are cut apart by what works element by element, and by nothing
that goes by the dim's name.
"""

from __future__ import annotations

import pytest

from tests.emit import sources
from tests.interpret.verify_plan import verify_plan

PROGRAM = """
use std.nn: Linear

dim batch = 6, d = 12, other = d

model Net {
  layer fc = Linear(d, d)
  forward(x: [batch, d]) -> [batch, d] { return fc(x) }
}

strategy s {
  mesh a = 2
  RULES
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 2)
  loss = mse_loss(model(x), label) + 0.1 * mean(TERM)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
TERMS = (
    "square(model.fc.weight)", "model.fc.weight * model.fc.weight", "relu(model.fc.weight) - 1",
    "softmax(relabel(model.fc.weight -> [d, other]), over = other)", "model.fc.weight @ model.fc.weight",
)  # fmt: skip


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("pin", ["[d@a, d]", "[d, d@a]"])
@pytest.mark.parametrize("term", TERMS)
def test_a_weight_that_is_cut(term: str, pin: str, host: bool) -> None:
    rules = f"at fc.weight: {pin}" + "\n  at fc.weight: place on host" * host
    plan = sources.planned(PROGRAM.replace("RULES", rules).replace("TERM", term), 2, "s")
    assert verify_plan(plan).ok
    if term == TERMS[0]:
        (square,) = (op for op in plan.graph.ops if op.operator == "square")
        assert sorted(plan.ops[square.id].results[0].dims) == [(), ("a",)]
