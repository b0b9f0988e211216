"""The peak of a deep plan is worked out on four layers of each run. On generated models it is what the walk over all
layers gives: bytes, parts, moment and operator, for each coordinate.
"""

from __future__ import annotations

import random

import pytest

from shardlang.plan.bytes.peak import step
from shardlang.plan.bytes.peak.step import Peak, step_peaks
from shardlang.plan.bytes.peak.windows import Shallow, shallow, unfolded
from tests.emit.sources import planned

# What a line of a layer does with the value of the one before.
LINES = (
    "gelu(V)", "rms_norm(V, scale, over = d)", "V * scale", "dropout(V, 0.1)", "relu(V) + V",
    "V + relu(V @ up) @ down", "V / 2", "softmax(V, d) + V",
)  # fmt: skip
PROGRAM = """
dim batch = 16, d = 8, wide = 32

model Block {
  param up: [d, wide] = normal(0.1)
  param down: [wide, d] = normal(0.1)
  param scale: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    BODY
    return RESULT
  }
}

model Deep {
  param first: [d, wide] = normal(0.1)
  param last: [wide, d] = normal(0.1)
  layer blocks[COUNT] = Block()
  layer others[OTHERS] = Block()

  forward(x: [batch, d]) -> [batch, d] {
    h = x @ first @ last
    a = h |> blocks
    b = a |> others
    return (LAST) @ first @ last
  }
}

strategy s {
  RULES
}

train {
  model = Deep()
  data = random(x: [batch, d], label: [batch, d], batches = 2)
  loss = mse_loss(model(x), label)
  optimizer = adamw(lr = 1e-3)
  precision = PRECISION
  steps = 2
}
"""
RULES = (
    "", "zero 1 over dp", "zero 2 over dp", "zero 3 over dp", "zero 3 over dp, keep", "microbatches 2",
    "bucket gradients 2KB", "at blocks[*]: recompute", "at blocks[*]: recompute all but products",
    "at blocks[2]: recompute",
)  # fmt: skip


def program(seed: int) -> tuple[str, int]:
    """A program, and for how many ranks."""
    rng = random.Random(seed)
    count, others = rng.choice((7, 9, 12)), rng.choice((1, 8))
    chosen = rng.sample(RULES, 3)
    mesh, ranks = "mesh dp = 4\n  split batch over dp", 4
    if rng.random() < 0.3:
        mesh, ranks = "mesh dp = 2, tp = 2\n  split batch over dp\n  split wide over tp", 4
    elif rng.random() < 0.3:
        mesh, ranks = 'mesh pp = 2, dp = 2\n  split batch over dp\n  stages over pp balanced\n  schedule "1f1b"', 4
        chosen = ["microbatches 2", *(rule for rule in chosen if not rule.startswith("microbatches"))]
    kept = {rule.partition(" ")[0]: rule for rule in chosen}
    drawn = [*rng.sample(LINES, rng.randint(1, 5)), "V @ up @ down"]
    lines = [line.replace("V", f"v{at}") for at, line in enumerate(drawn)]
    body = ["v0 = x * scale", *(f"v{at + 1} = {line}" for at, line in enumerate(lines))]
    text = PROGRAM
    for name, value in {
        "BODY": "\n    ".join(body), "RESULT": f"v{len(lines)}", "LAST": rng.choice(("b", "a + b")),
        "COUNT": str(count), "OTHERS": str(others), "PRECISION": rng.choice(("f32", "bf16")),
        "RULES": "\n  ".join([mesh, *kept.values()]),
    }.items():  # fmt: skip
        text = text.replace(name, value)
    return text, ranks


def peaks_of(of: Shallow) -> tuple[Peak, ...] | None:
    """Worked out on few layers; None where these are not enough."""
    lines = step._lines(of)
    return tuple(line.peak() for line in lines) if lines is not None else None


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_few_layers_have_the_peak_of_all(first: int) -> None:
    folded = 0
    for seed in range(first, first + 20):
        plan = planned(*program(seed), "s")
        few, whole = shallow(plan), peaks_of(unfolded(plan))
        assert peaks_of(few) in (None, whole), seed
        assert step_peaks(plan) == whole, seed
        folded += bool(few.runs) and peaks_of(few) is not None
    assert folded > 14
