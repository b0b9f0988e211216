"""Bytes that a rank keeps, by hand: parameters, gradients, optimizer state and activations under each level of ZeRO."""

from __future__ import annotations

import pytest

from shardlang.folds.memory import memory
from shardlang.folds.traffic import sent_bytes
from tests.emit.sources import planned

TEXT = """\
dim batch = 16, input = 32, hidden = 8

model Net {
  param w: [input, hidden] = normal(0.1)
  param v: [hidden] = ones()

  forward(x: [batch, input]) -> [batch, hidden] {
    y = x @ w
    return y * v
  }
}

strategy s {
  mesh dp = 4
  split batch over dp
  RULES
}

train {
  model = Net()
  data = random(x: [batch, input], batches = 1)
  loss = mean(square(model(x)))
  optimizer = OPTIMIZER
  epochs = 1
}
"""
W, V = 4 * 32 * 8, 4 * 8


def kept(optimizer: str, rules: str) -> tuple[int, int, int]:
    found = memory(planned(TEXT.replace("OPTIMIZER", optimizer).replace("RULES", rules), 4))
    # Both parameters come together under level 3, once on their way and once unpacked.
    assert found.copies == (2 * (W + V) if "zero 3" in rules else 0)
    assert found.total == found.parameters + found.copies + found.gradients + found.optimizer + found.activations
    return found.parameters, found.gradients, found.optimizer


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [("sgd(lr = 0.1)", 0), ("sgd(lr = 0.1, momentum = 0.9)", 1), ("adam(lr = 0.1)", 2), ("adamw(lr = 0.1)", 2)],
)
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_levels_of_zero(optimizer: str, copies: int, level: int) -> None:
    whole, part = W + V, (W + V) // 4
    assert kept(optimizer, f"zero {level} over dp" if level else "") == (
        part if level == 3 else whole,
        part if level >= 2 else whole,
        copies * (part if level >= 1 else whole),
    )


def test_activations_are_of_the_local_part() -> None:
    """x and, for backward, y and its product with v, of 4 rows each, and the loss; the square is needed no more."""
    found = memory(planned(TEXT.replace("OPTIMIZER", "sgd(lr = 0.1)").replace("RULES", ""), 4))
    assert found.activations == 4 * (4 * 32 + 2 * 4 * 8 + 1)


def test_bytes_sent_in_a_step() -> None:
    """One all-reduce of both gradients, or a reduce-scatter and a gathering of the parameters; under level 3 the
    same, since what backward reads, v for the gradient of y, is what forward ended with.
    """
    for level, sent in ((0, (0, 2 * 3)), (1, (3, 3)), (2, (3, 3)), (3, (3, 3))):
        rules = f"zero {level} over dp" if level else ""
        found = sent_bytes(planned(TEXT.replace("OPTIMIZER", "sgd(lr = 0.1)").replace("RULES", rules), 4))
        assert found == (sent[0] * (W + V) // 4, sent[1] * (W + V) // 4), level
