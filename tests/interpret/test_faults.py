"""Faults that simulated ranks have found, each the smallest program that showed it."""

from __future__ import annotations

import torch

from shardlang.graph.graph import Op
from shardlang.interpret.meaning.undecided import undecided
from shardlang.interpret.verify.one_device import following
from tests.emit.sources import checked, planned
from tests.interpret.verify_plan import verify_plan

UNEVEN = """
dim batch = 4, seq = 4, width = 2

model Net {
  param w: [width] = normal(0.5)

  forward(x: [batch, seq, width]) -> [batch, seq * width] {
    y = x * w
    return rearrange(y -> [batch, seq * width])
  }
}

strategy s {
  mesh b = 3
  split seq over b uneven
}

train {
  model = Net()
  data = random(x: [batch, seq, width], batches = 1)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def test_an_uneven_dim_within_a_product_stays_whole() -> None:
    """seq = 4 over 3 ranks is 2 + 2 + 0, times width 4, 4, 0; torch.chunk's sizes of seq * width are 3, 3, 2."""
    report = verify_plan(planned(UNEVEN, 3))
    assert report.ok, str(report.difference)


TIES = """
dim batch = 4, more = 4

model Net {
  param w: [more] = ones()

  forward(x: [batch, more]) -> [batch, more] {
    return x * w
  }
}

train {
  model = Net()
  data = random(x: [batch, more], label: [batch, more], batches = 1)
  y = model(x)
  best = argmax(x, over = more)
  over = x > 0.5
  loss = mean(square(y))
  metric first = mean(cast(best, f32))
  metric second = mean(cast(over, f32))
  metric area = auc(x, label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def test_what_rounding_decides_is_no_difference() -> None:
    """An argmax or a comparison of equal sums, which ranks add in another order."""
    graph = checked(TIES).graph
    ops = {op.operator: op for op in graph.ops}

    def found(op: Op, *given: object) -> torch.Tensor | None:
        return undecided(op, dict(zip(op.operands, map(torch.as_tensor, given), strict=True)), 1e-9)

    inf = float("inf")
    rows = [[1.0, 1.0 + 1e-15, 0.0, 0.0], [1.0, 1.1, 0.0, 0.0], [0.5, 0.5, 0.5 - 1e-14, 0.4], [0.1, 0.2, -inf, -inf]]
    values = torch.tensor(rows, dtype=torch.float64)
    first, second = found(ops["argmax"], values), found(ops["gt"], values, torch.tensor(0.5, dtype=torch.float64))
    assert first is not None and first.tolist() == [True, False, True, False]
    assert second is not None and second.sum() == 3
    # Nothing but rounding, by the scale at which values are held to each other.
    small = 1e-17 * torch.tensor([[3.0, 1.0, 0.0, 2.0]], dtype=torch.float64)
    for tied in (found(ops["argmax"], small), found(ops["gt"], small, torch.zeros(()))):
        assert tied is not None and tied.all()
    (x,) = ops["argmax"].operands
    follows = following(graph, x)
    assert {x, *ops["argmax"].results, *ops["gt"].results} <= follows and follows.isdisjoint(graph.params)
    for scores, is_tied in ((values, True), (torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64), False)):
        area = found(ops["auc"], scores, torch.zeros(1))
        assert area is not None and bool(area) is is_tied
