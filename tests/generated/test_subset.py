"""A seeded part of the generated pairs, the same in every run: simulated ranks, and a few on real gloo ranks.

`python -m tests.generated` runs as many as one likes. What it found is in tests/plan/test_generated_faults.py and with
the parts that were at fault.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.source import Source
from tests.generated import figures, program
from tests.generated.cases import AGREED, REFUSED, case, judged, reached
from tests.generated.real import Real
from tests.generated.tally import INTERNAL, REGISTRY

MASKED_LOSS = """
dim batch = 8, seq = 3, d = 4, vocab = 7

model Net {{
  param w: [d, vocab] = normal(0.5)

  forward(x: [batch, seq, d]) -> [batch, seq, vocab] {{
    return x @ w
  }}
}}

strategy s {{
  mesh dp = 2
  split batch over dp
  microbatches 2
}}

train {{
  model = Net()
  data = random(x: [batch, seq, d], label: i64[batch, seq] < vocab, weight: [batch, seq], batches = 2)
  logs = log_softmax(model(x), over = vocab)
  kept = weight * cast(label != 3, f32)
  nll = 0 - gather(logs, label, over = vocab){count}
  loss = {loss}
  optimizer = sgd(lr = 0.1)
  steps = 2
}}
"""
# What the pairs are made of that no operator's name tells.
FEATURES = {
    "metric over the batch", "metric of the loss", "metric of the model's values", "metric sharing the loss's values",
    "masked loss", "loss over a number", "number on a total", "integers in floats", "cast of data", "cast of integers",
    "saturated", "shared state", "rows of a constant", "optimizer of rows", "optimizer adagrad", "optimizer ftrl",
    "optimizer lazy_adam", "eval", "deep",
}  # fmt: skip
FIRST = 700_000
EACH = 10


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("part", range(5))
def test_generated_pairs_agree_on_simulated_ranks(part: int) -> None:
    outcomes = [case(seed) for seed in range(FIRST + part * EACH, FIRST + (part + 1) * EACH)]
    failed = [f"seed {o.seed}, {o.ranks} ranks: {o.kind}: {o.detail}" for o in outcomes if o.failed]
    assert not failed, "\n".join(failed)
    assert sum(o.kind == AGREED for o in outcomes) >= EACH // 2


@pytest.mark.slow
def test_generated_pairs_agree_on_real_ranks(tmp_path: Path) -> None:
    real = Real(tmp_path)
    try:
        # 2 and 4 ranks by turns.
        outcomes = [real.case(seed) for seed in range(FIRST, FIRST + 8) if seed % 4 < 2]
    finally:
        real.close()
    failed = [f"seed {o.seed}, {o.ranks} ranks: {o.kind}: {o.detail}" for o in outcomes if o.failed]
    assert not failed, "\n".join(failed)
    assert {o.kind for o in outcomes} <= {AGREED, REFUSED}


def test_every_operator_is_generated_with_and_without_a_gradient_and_every_feature() -> None:
    forward: set[str] = set()
    backward: set[str] = set()
    features: set[str] = set()
    for seed in range(FIRST, FIRST + 150):
        sink = Sink()
        written = program.write(random.Random(seed))
        features |= written.features
        checked = driver.check_source(Source("generated.shard", written.text("")), sink)
        assert checked is not None, (seed, [d.message for d in sink.found])
        here, back = reached(checked.graph)
        forward |= here
        backward |= back
    operators = set(REGISTRY) - INTERNAL
    assert operators <= forward, operators - forward
    differentiable = {n for n in operators if REGISTRY[n].differentiable}
    assert differentiable <= backward, differentiable - backward
    assert features >= FEATURES, FEATURES - features


def test_every_way_of_writing_a_masked_loss_is_one_under_microbatches_and_without() -> None:
    """Each form of a loss over what a mask keeps is planned wherever another is, and is what one device computes."""
    for form in figures.MASKED:
        count = "\n  total = sum(kept)" if "{n}" in form else ""
        text = MASKED_LOSS.format(count=count, loss=form.format(e="nll", k="kept", n="total"))
        outcome = judged(text, 2)
        assert outcome.kind == AGREED, (form, outcome.detail)


def test_a_seed_gives_the_same_pair_again() -> None:
    assert program.write(random.Random(5)) == program.write(random.Random(5))
    assert case(FIRST + 1) == case(FIRST + 1)
