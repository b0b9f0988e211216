"""What rounding makes of a gradient that is zero in truth is no difference, and no more than that is let pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.interpret.meaning import whole
from shardlang.interpret.ranks import ranks
from shardlang.plan.plan import Plan
from shardlang.source import Source
from tests.interpret.verify_plan import verify_plan

# `batch_norm` takes `shift` out again. `faint` has a gradient of about 1e-6, which is none of rounding.
TEXT = """
dim batch = 8, width = 4, hidden = 6

model Net {
  param w: [hidden, width] = normal(0.5)
  param shift: [hidden] = constant(0.7)
  param faint: [hidden] = normal(0.5)
  state mean: [hidden] = zeros()
  state variance: [hidden] = ones()

  forward(x: [batch, width]) -> [batch, hidden] {
    h = einsum(x, w -> [batch, hidden]) + shift
    return batch_norm(h, mean, variance)
  }
}

strategy dp {
  mesh dp = 4
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, width], label: [batch, hidden])
  loss = 1e6 * mse_loss(model(x), label) + 1e-6 * mean(square(model.faint))
  optimizer = sgd(lr = 1e-9)
  precision = f64
  steps = 1
}
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    program = driver.check_source(Source("zero.shard", TEXT), Sink())
    assert program is not None
    found = driver.plan_program(program, None, 4, Sink())
    assert found is not None
    return found


def test_rounding_of_zero_is_no_difference(plan: Plan) -> None:
    """Of one seed rounding may be the same on one device by chance."""
    for seed in range(5):
        report = verify_plan(plan, seed=seed)
        assert report.ok, str(report.difference)


@pytest.mark.parametrize(("path", "by"), [("shift", 5e-9), ("faint", 1e-12)])
def test_what_is_larger_than_rounding_is_found(plan: Plan, path: str, by: float, monkeypatch: Any) -> None:
    """The first is some forty times what rounding leaves, the second a part in 200,000 of the gradient."""
    value = next(v for v in plan.graph.params if plan.graph.values[v].path == path)
    right = ranks.run

    def wrong(*given: Any, **named: Any) -> ranks.Results:
        found = right(*given, **named)
        return replace(found, stored={**found.stored, value: [x + by for x in found.stored[value]]})

    monkeypatch.setattr(ranks, "run", wrong)
    found = verify_plan(plan).difference
    assert found is not None and (found.kind, found.path) == ("stored gradient", path)


# Its first weights are zero, which has no other number in its last place.
ROUNDED = """
dim batch = 8, width = 4

model Net {
  param w: [width] = zeros()

  forward(x: [batch, width]) -> [batch, width] {
    return exp(x * w)
  }
}

train {
  model = Net()
  data = random(x: [batch, width])
  loss = mean(model(x))
  optimizer = sgd(lr = 0.1)
  precision = f64
  steps = 1
}
"""


def test_rounding_moves_what_is_computed_and_not_only_what_is_given() -> None:
    program = driver.check_source(Source("rounded.shard", ROUNDED), Sink())
    assert program is not None
    graph = program.graph
    given = torch.rand(8, 4, dtype=torch.float64)
    found = whole.run(graph, {graph.data[0]: given}, {graph.params[0]: torch.zeros(4, dtype=torch.float64)})
    value = next(op.results[0] for op in graph.ops if op.operator == "exp")
    assert (found.values[value] == 1).all()
    for other in found.nearby():
        moved = (other.values[value] - 1).abs()
        assert moved.min() > 0 and moved.max() <= torch.finfo(torch.float64).eps
