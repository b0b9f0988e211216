"""Every form that `shardc verify` asks of an emitted program has a variable there."""

from __future__ import annotations

from shardlang.interpret.verify.emitted import due, homes
from shardlang.plan.plan import MoveKind
from tests.emit.sources import planned
from tests.matched.legal import legal

PROGRAM = """
dim batch = 8, seq = 3, hidden = 6

model Net {
  param w: [seq, hidden] = normal(0.5)
  forward(x: [batch, seq]) -> [batch, hidden] { return x @ w }
}

strategy s {
  mesh c = 3, dp = 2
  split hidden over (c, dp)
  at train.seen: shard ((2, 3))
}

train {
  model = Net()
  data = random(x: [batch, seq], target: [batch, seq])
  out = model(x)
  seen = square(target)
  loss = sum(0.1 * seen) + 0.1 * mean(square(out))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def test_a_number_that_two_meshes_read_needs_none() -> None:
    """It stands in the lines that read it; its view on the other mesh has no line either."""
    plan = planned(PROGRAM, 6, "s")
    assert due(plan) <= homes(plan).keys()
    assert any(plan.graph.values[each.value].constant is not None for each in plan.conversions)


def test_a_parameter_that_two_meshes_read_needs_none() -> None:
    """It is the same in both, and functions read it as what they are given."""
    plan = legal(114, 6)
    assert plan is not None and due(plan) <= homes(plan).keys()
    assert any(each.value in plan.params and each.move.kind is MoveKind.VIEW for each in plan.conversions)
