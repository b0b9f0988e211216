"""`distance_buckets` of `std.transformer` as emitted, against the function of the library transformers."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.emit.sources import main_file

t5 = pytest.importorskip(
    "transformers.models.t5.modeling_t5", reason="the package transformers (extra `oracle`) is not installed"
)
FURTHEST = 200

# The loss is 0 where all buckets are those of the label.
TEXT = """use std.transformer: distance_buckets

dim places = 401

model Net {{
  param scale: [places] = ones()

  forward(position: i64[places]) -> [places] {{
    return cast(distance_buckets(position, {}, max_distance = {}, both = {}), f32) * scale
  }}
}}

train {{
  model = Net()
  data = random(position: i64[places] < 9, label: [places], batches = 1)
  loss = mse_loss(model(position), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}}
"""


@pytest.mark.parametrize("both", [True, False])
def test_buckets_are_theirs(both: bool) -> None:
    positions = torch.arange(-FURTHEST, FURTHEST + 1)
    for buckets, furthest in itertools.product((4, 5, 8, 20, 32, 33, 64, 100), (51, 64, 100, 128, 1000)):
        emitted: dict[str, Any] = {"__name__": "emitted"}
        exec(main_file(TEXT.format(buckets, furthest, str(both).lower()), 1), emitted)
        theirs = t5.T5Attention._relative_position_bucket(positions, both, buckets, furthest)
        scale = SimpleNamespace(scale=torch.ones(len(positions)))
        loss, _ = emitted["forward"](scale, positions, theirs.float())
        assert loss == 0, (buckets, furthest)
