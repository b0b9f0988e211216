"""Plans of programs that join and part dims: whatever the neighbours of an operator want, no product dim is cut out of
turn."""

from __future__ import annotations

from itertools import product

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import check_source, plan_program
from shardlang.plan.plan import Plan
from shardlang.plan.verify import verify
from shardlang.source import Source

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
NORMALISED = "return batch_norm(rearrange(v -> [batch, c * h]), mean, var) @ w"
PINS = ["[batch@a, c, h@b]", "[batch@b, c, h]", "[batch, c@a, h@b]", "[batch@b, c@a, h]"]
MESHES = ["a = 2, b = 2, dp = 2", "b = 2, dp = 2, a = 2"]


def planned(body: str, rules: str, ranks: int) -> Plan:
    sink = Sink()
    states = "state mean: [c * h] = zeros()\n  state var: [c * h] = ones()" if "mean" in body else ""
    text = TEXT.replace("BODY", body).replace("RULES", rules.replace("; ", "\n  ")).replace("STATES", states)
    program = check_source(Source("product.shard", text), sink)
    assert program is not None, [d.message for d in sink.found]
    found = plan_program(program, None, ranks, sink)
    assert found is not None, [d.message for d in sink.found]
    return found


@pytest.mark.parametrize("body", BODIES)
def test_no_minor_factor_is_cut_before_those_major_to_it(body: str) -> None:
    """Second thoughts on a layout may free the axis that a major factor has, only with what is minor to it whole."""
    for mesh, pin, uneven in product(MESHES, PINS, ("", " uneven")):
        rules = f"mesh {mesh}; split batch over dp{uneven}; split out over a; at v: {pin}"
        assert verify(planned(BODIES[body], rules, 8)) == [], rules


def test_a_pinned_state_cuts_the_factors_that_rules_cut() -> None:
    """Minor factors too, where the major ones are used up: each with its own axes, and the statistics' bytes follow."""
    rules = "mesh a = 2, b = 2, dp = 2; split batch over dp; split c over a; split h over b"
    by_rules, pinned = (planned(NORMALISED, f"{rules}{pin}", 8) for pin in ("", "; at mean: [c@a * h@b]"))
    assert [(op.factor_axes, op.inside) for op in pinned.ops] == [(op.factor_axes, op.inside) for op in by_rules.ops]
    assert verify(pinned) == []
