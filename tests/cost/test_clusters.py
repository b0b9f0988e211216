"""A device of `std.clusters` has less for tensors than its memory: SH450 names what is reserved."""

from __future__ import annotations

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import device, needed
from shardlang.plan.plan import Plan
from tests.emit.sources import tried

DEVICES = ("a100", "h100", "h200", "b200", "gb200", "l40s")
# A parameter of d times 65,536 numbers, and as many of its gradient.
TEXT = """
use std.clusters: DEVICE

dim batch = 8, d = SIZE, out = 65536

model Net {
  param w: [d, out] = normal(0.1)

  forward(x: [batch, d]) -> [batch, out] {
    return x @ w
  }
}

strategy s {
  mesh dp = auto
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, out], batches = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""
ROW = 2 * 4 * 65536
# More than its other tensors, and what segments round up.
BESIDE = 10**8


def planned(name: str, size: int) -> tuple[Plan | None, Sink]:
    text = TEXT.replace("DEVICE", name).replace("SIZE", str(size))
    return tried(text, 1, "s")


@pytest.mark.parametrize("name", DEVICES)
def test_a_plan_at_the_edge_of_a_device(name: str) -> None:
    """One that leaves more than is reserved fits; one that leaves half of that does not."""
    plan, _ = planned(name, 8)
    has = device(plan.program) if plan is not None else None
    assert plan is not None and has is not None
    assert has.reserved == 871 * 10**6
    fits, sink = planned(name, (has.memory - has.reserved - BESIDE) // ROW)
    assert fits is not None and not sink.found
    assert has.memory - BESIDE <= needed(fits)[0] <= has.memory
    none, sink = planned(name, (has.memory - has.reserved // 2) // ROW)
    assert none is None and [d.code for d in sink.found] == ["SH450"]
    (note,) = sink.found[0].notes
    assert "871 MB are reserved" in " ".join(note.split())
