"""Plans of programs that join and part dims: whatever the neighbours of an operator want, no product dim is cut out of
turn."""

from __future__ import annotations

from itertools import product

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import check_source, plan_program
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from tests.interpret.verify_plan import verify_plan

TEXT = """
dim batch = 8, c = 2, h = 6, out = 4

model Net {
  param w: [c * h, out] = normal(0.3)
  STATES

  forward(x: [batch, c, h]) {
    v = sin(x)
    BODY
  }
}

strategy s {
  RULES
}

train {
  model = Net()
  data = random(x: [batch, c, h], y: [batch, out], batches = 1)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""

BODIES = {
    "joined": "return rearrange(v -> [batch, c * h]) @ w",
    "flattened": "return flatten(v, keep = batch) @ w",
    "joined, parted, joined": "f = relu(rearrange(relu(rearrange(v -> [batch, c * h])) -> [batch, c, h]))\n"
    "    return rearrange(f -> [batch, c * h]) @ w",
    "joined with the batch": "f = rearrange(rearrange(v -> [batch * c, h]) -> [batch, c * h])\n    return f @ w",
}
PINS = ["[batch@a, c, h@b]", "[batch@b, c, h]", "[batch, c@a, h@b]", "[batch@b, c@a, h]"]
MESHES = ["a = 2, b = 2, dp = 2", "b = 2, dp = 2, a = 2"]


def told(body: str, rules: str, states: str) -> tuple[Plan | None, list[str]]:
    """The plan on 8 ranks, and the codes of what is wrong."""
    sink = Sink()
    declared = f"state mean: [{states}] = zeros()\n  state var: [{states}] = ones()" if states else ""
    text = TEXT.replace("BODY", body).replace("RULES", rules.replace("; ", "\n  ")).replace("STATES", declared)
    program = check_source(Source("product.shard", text), sink)
    found = plan_program(program, None, 8, sink) if program is not None else None
    return found, [f"{d.code}: {d.message}" for d in sink.found]


def planned(body: str, rules: str, states: str = "") -> Plan:
    found, mistakes = told(body, rules, states)
    assert found is not None, mistakes
    return found


@pytest.mark.parametrize("body", BODIES)
def test_no_minor_factor_is_cut_before_those_major_to_it(body: str) -> None:
    """Second thoughts on a layout may free the axis that a major factor has, only with what is minor to it whole."""
    for mesh, pin, uneven in product(MESHES, PINS, ("", " uneven")):
        rules = f"mesh {mesh}; split batch over dp{uneven}; split out over a; at v: {pin}"
        assert verify_plan(planned(BODIES[body], rules)).ok, rules


def test_a_pinned_state_cuts_the_factors_that_rules_cut() -> None:
    """Minor factors too, where the major ones are used up: each with its own axes, and the statistics' bytes follow."""
    body = "return batch_norm(rearrange(v -> [batch, c * h]), mean, var) @ w"
    rules = "mesh a = 2, b = 2, dp = 2; split batch over dp; split c over a; split h over b"
    by_rules, pinned = (planned(body, f"{rules}{pin}", "c * h") for pin in ("", "; at mean: [c@a * h@b]"))
    assert [(op.factor_axes, op.inside) for op in pinned.ops] == [(op.factor_axes, op.inside) for op in by_rules.ops]
    assert verify_plan(pinned).ok


def test_a_pinned_state_that_takes_the_axis_of_a_major_factor_is_told() -> None:
    """`a` cuts `c` of the rows until `mean` needs it for the columns: then `batch` would be cut alone."""
    body = "return rearrange(batch_norm(rearrange(v -> [c * batch, h]), mean, var) -> [batch, c * h]) @ w"
    rules = "mesh a = 2, b = 4; split c over a; split batch over b"
    assert verify_plan(planned(body, rules, "h")).ok
    message = "SH305: `batch` is a minor factor of `c * batch` and cannot be cut alone"
    assert told(body, f"{rules}; at mean: [h@a]", "h") == (None, [message])
