"""ZeRO beside positional rules: a parameter on another factoring of the ranks is sharded over axes that this has."""

from __future__ import annotations

import pytest

from tests.interpret.verify_plan import verify_plan
from tests.plan.test_uneven import planned

TEXT = """
dim batch = 12, width = 12

model Net {
  param p: [width] = normal(0.5)
  param q: [width] = normal(0.5)

  forward(x: [batch, width]) -> [batch, width] {
    y = layer_norm(x, p, over = width)
    z = tanh(y)
    return z * q
  }
}

strategy s {
  mesh cp = 4, b = 3
  split batch over b
  at y: shard ((6, 1), (1,))
  ZERO
}

train {
  model = Net()
  data = random(x: [batch, width], batches = 2)
  loss = mean(square(model(x) - 0.5))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


@pytest.mark.parametrize("zero", [f"zero {n} over {axes}" for n in (1, 2, 3) for axes in ("b", "cp", "(b, cp)")])
def test_zero_over_axes_of_another_factoring(zero: str) -> None:
    plan = planned(TEXT.replace("ZERO", zero), 12)
    assert len(plan.meshes) == 2
    for value, param in plan.params.items():
        names = {axis.name for axis in plan.meshes[param.stored.mesh].axes}
        assert set(param.zero_axes) <= names, plan.graph.values[value].path
        if "(" in zero:
            cut = (*param.stored.split_axes(), *param.zero_axes)
            assert param.zero and plan.meshes[param.stored.mesh].degree(cut) == 12
    report = verify_plan(plan, steps=2)
    assert report.ok, str(report.difference)
