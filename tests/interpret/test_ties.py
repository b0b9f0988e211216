"""Ties that rounding decides: `verify` calls none of them a fault, lists them, and still finds faults beside them."""

from __future__ import annotations

import math

import pytest
import torch

from shardlang.interpret.meaning import initial, whole
from shardlang.interpret.meaning.elements import in_type
from shardlang.interpret.verify.one_device import _furthest, moves_as_far
from shardlang.plan.plan import Plan
from tests.emit import sources
from tests.interpret.verify_plan import verify_plan

# Both scores of an example are equal but for rounding, since ranks add them up in another order.
TEXT = """
dim batch = 64, half = 32, experts = 2, one = 1, width = 4

model Net {
  param a: [half] = normal(1.0)
  param b: [half] = normal(1.0)
  param table: [experts, width] = normal(1.0)

  forward(u: [batch, half]) -> [batch, width] {
    left = einsum(u, a -> [batch]) + einsum(u, b -> [batch])
    right = einsum(u, a + b -> [batch])
    scores = rearrange(stack(left, right, over = experts) -> [batch, experts])
    found = FOUND
    return rearrange(found -> [batch, 1]) * rearrange(sum(table, over = experts) -> [1, width]) + mean(scores)
  }
}

strategy split {
  mesh mp = 2
  split half over mp
}

train {
  model = Net()
  data = random(u: [batch, half], batches = 2)
  loss = mean(square(model(u)))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
BEST = "argmax(scores, over = experts)"
FIRST = "top_k(scores, one, over = experts)"
TIES = {
    "top_k": f"sum(gather(scores, {FIRST}, over = experts) * cast({FIRST}, f32), over = one)",
    "argmax": f"gather(scores, {BEST}, over = experts) * cast({BEST}, f32)",
    "comparison": "where(left < right, 2 * left, right)",
    "amax": "amax(scores, over = experts)",
    "amin": "amin(scores, over = experts)",
    "maximum": "maximum(left, right)",
    "minimum": "minimum(left, right)",
    "relu": "relu(1e6 * (left - right)) + left",
    "abs": "abs(1e6 * (left - right)) + left",
    "remainder": "left % abs(right)",
    "floor_divide": "left // abs(right) * left",
    "max_pool1d": "rearrange(max_pool1d(rearrange(scores -> [batch, 1, experts]), 2) -> [batch])",
}


def planned(found: str) -> Plan:
    return sources.planned(TEXT.replace("FOUND", found), 2)


@pytest.mark.parametrize("found", TIES.values(), ids=TIES)
def test_a_tie_is_no_fault(found: str) -> None:
    report = verify_plan(planned(found), steps=2)
    assert report.ok, report.difference
    assert report.undecided


def test_only_what_a_tie_moves_is_open_and_only_as_far() -> None:
    plan = in_type(planned(TIES["amax"]), "f64")
    params, fields = initial.initial(plan.graph, 1), initial.batch(plan.graph, 1, 1)
    results = whole.run(plan.graph, fields, params)
    at = {value.path: (value.id, -1) for value in plan.graph.values}
    for kind, path, error, open in (
        ("gradient", "scores", 0.1, True),
        ("gradient", "scores", 1e3, False),
        ("gradient", "table", 1e-6, False),
        ("stored gradient", "table", 1e-6, False),
        ("value", "scores", 0.1, False),
        ("parameter", "a", 1e-6, False),
    ):
        assert moves_as_far(plan, kind, at[path], results, error) is open, (kind, path, error)


def test_a_nan_that_stands_elsewhere_has_moved() -> None:
    nan = math.nan
    here = torch.tensor([nan, 0.0, 1.0], dtype=torch.float64)
    assert _furthest(torch.tensor([0.0, nan, 1.0], dtype=torch.float64), here) == math.inf
    assert _furthest(torch.tensor([nan, 0.0, 1.5], dtype=torch.float64), here) == 0.5
    assert _furthest(torch.tensor([nan, 0.0, math.inf], dtype=torch.float64), here) == math.inf
