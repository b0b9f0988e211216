"""Microbatches in a plan: a step sends as much as without them, and what a microbatch has is a part of the batch."""

from __future__ import annotations

import pytest

from shardlang.folds.traffic import sent_bytes
from shardlang.types.layout import local_shape
from tests.emit.sources import planned

TEXT = """\
use std.nn: Linear

dim batch = 32, pixels = 64, hidden = 16, classes = 8

model Net {
  layer up = Linear(pixels, hidden)
  layer down = Linear(hidden, classes)

  forward(image: [batch, pixels]) -> [batch, classes] {
    h = up(image) |> relu
    return down(h)
  }
}

strategy s {
  mesh dp = 2, mp = 2
  split batch over dp
  split hidden over mp
  RULES
}

train {
  model = Net()
  data = random(image: [batch, pixels], label: i64[batch] < classes, batches = 1)
  loss = cross_entropy(model(image), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_step_sends_as_much_in_parts(count: int) -> None:
    whole = planned(TEXT.replace("RULES", ""), 4)
    parts = planned(TEXT.replace("RULES", f"microbatches {count}"), 4)
    assert parts.microbatches == count and parts.ranks == 4
    assert sent_bytes(parts) == sent_bytes(whole)
    (h,) = parts.graph.addresses["h"]
    layout = parts.produced[h]
    assert local_shape(parts.graph.values[h].type, layout, parts.meshes[layout.mesh]) == (16 // count, 8)


def test_one_microbatch_is_none() -> None:
    assert planned(TEXT.replace("RULES", "microbatches 1"), 4).microbatches == 1
