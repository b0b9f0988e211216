"""What rounding makes of a gradient that is zero in truth is no difference, and no more than that is let pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from shardlang.interpret.meaning import whole
from shardlang.interpret.ranks import ranks
from shardlang.interpret.verify.one_device import FURTHER
from shardlang.plan.plan import Plan
from tests.emit import sources
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
    return sources.planned(TEXT, 4)


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

    def wrong(*given: Any, **named: Any) -> ranks.RankResults:
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
    program = sources.checked(ROUNDED)
    graph = program.graph
    given = torch.rand(8, 4, dtype=torch.float64)
    found = whole.run(graph, {graph.data[0]: given}, {graph.params[0]: torch.zeros(4, dtype=torch.float64)})
    value = next(op.results[0] for op in graph.ops if op.operator == "exp")
    assert (found.values[value] == 1).all()
    for other in found.nearby():
        moved = (other.values[value] - 1).abs()
        assert moved.min() > 0 and moved.max() <= torch.finfo(torch.float64).eps


def test_a_kernel_that_centres_once_leaves_no_more_of_zero_than_is_known(plan: Plan) -> None:
    """torch's `batch_norm` does not centre on its way back, so what it leaves grows with the mean over the deviation:
    no more than so many times what one device knows of rounding.
    """
    graph, draws = plan.graph, torch.Generator().manual_seed(3)
    values = {graph.values[v].path.removeprefix("train."): v for v in (*graph.params, *graph.states, *graph.data)}
    for _ in range(5):
        given = {path: torch.randn(graph.values[v].type.shape, generator=draws, dtype=torch.float64)
                 for path, v in values.items()}  # fmt: skip
        given |= {"w": 1e-3 * given["w"], "mean": torch.zeros(6).double(), "variance": torch.ones(6).double()}
        shift = (given["shift"] + 5).requires_grad_()
        named = {v: given[path] for path, v in values.items()} | {values["shift"]: shift.detach()}
        found = whole.run(graph, named, named)
        near = found.nearby()
        normal = functional.batch_norm(given["x"] @ given["w"].T + shift, None, None, training=True)
        (1e6 * (normal - given["label"]).square().mean()).backward()
        here = found.gradients[values["shift"]]
        room = FURTHER * max(float((other.gradients[values["shift"]] - here).abs().max()) for other in near)
        assert shift.grad is not None and float((shift.grad - here).abs().max()) <= room
