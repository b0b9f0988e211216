"""The interpreter's optimizers, which are written from their formulas, against torch.optim in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from shardlang.interpret.meaning.optimizers import RULES, looked_up
from tests.emit.sources import planned
from tests.runtime.test_optimizers import SETTINGS, TORCH


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_steps_are_torchs(kind: str, settings: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(7, generator=generator, dtype=torch.float64)
    leaf = torch.nn.Parameter(x.clone())
    theirs = TORCH[kind]([leaf], **settings)
    memory: dict[str, torch.Tensor] = {}
    for step in range(1, 7):
        gradient = torch.randn(7, generator=generator, dtype=torch.float64)
        leaf.grad = gradient.clone()
        theirs.step()
        x = RULES[kind](x, gradient, memory, step, settings)
    torch.testing.assert_close(x, leaf.detach(), atol=1e-12, rtol=1e-12)


LOOKUPS = """\
dim batch = 4, d = 2, words = 8

model Net {
  param table: [words, d] = ones()

  forward(ids: i64[batch], others: i64[batch]) -> [batch, d] {
    return embedding(ids, table) + detach(embedding(others, table))
  }
}

train {
  model = Net()
  data = random(ids: i64[batch] < words, others: i64[batch] < words, batches = 1)
  loss = mean(square(model(ids, others)))
  metric far = mean(embedding(others, model.table))
  optimizer = lazy_adam(lr = 0.1)
  steps = 1
}
"""


def test_rows_that_no_gradient_comes_back_from_stay() -> None:
    """As in the runtime, where the gradient of a table holds the rows of lookups that a gradient comes back from."""
    graph = planned(LOOKUPS, 1).graph
    fields = {graph.values[v].name: v for v in graph.data}
    ids = {fields["ids"]: torch.tensor([0, 2, 2, 5]), fields["others"]: torch.tensor([1, 2, 6, 7])}
    (rows,) = looked_up(graph, graph.params, lambda value: [ids[value]]).values()
    assert rows.nonzero().flatten().tolist() == [0, 2, 5]
