"""The peak of a step in plans whose parts are known by hand; tests/end_to_end/test_peaks.py holds it to real ranks."""

from __future__ import annotations

from collections import Counter

import pytest

from shardlang.folds.memory import memory
from shardlang.folds.peak.report import lacks
from shardlang.folds.peak.step import Peak, peaks_by_action, step_peaks, steps_of_memory
from shardlang.step.messages import messages
from tests.emit.sources import planned

LLAMA = """
use std.llama: Llama

dim batch = 8, seq = 64

strategy s {
  RULES
}

train {
  model = Llama(vocab = VOCAB, d = 128, heads = 8, kv_heads = 4, ffn = 384, layers = 3)
  data = random(tokens: i64[batch, seq] < VOCAB, label: i64[batch, seq] < VOCAB, batches = 2)
  loss = cross_entropy(model(tokens), label)
  optimizer = adamw(lr = 1e-3)
  steps = 2
}
"""


def peak(rules: str, ranks: int = 1, vocab: int = 512) -> Peak:
    (found,) = step_peaks(planned(LLAMA.replace("RULES", rules).replace("VOCAB", str(vocab)), ranks, "s"))
    return found


def test_the_backward_of_a_large_loss_has_two_gradients_of_the_scores() -> None:
    found, scores = peak("mesh dp = 1", vocab=2048), 8 * 64 * 2048 * 4
    assert found.doing == "backward" and found.parts["temporaries"] == 2 * scores
    assert "gradients" not in found.parts
    assert sum(found.parts.values()) == found.bytes


def test_a_bucket_is_there_beside_the_gradients_that_fill_it() -> None:
    plan = planned(LLAMA.replace("RULES", "mesh dp = 8\n  split batch over dp").replace("VOCAB", "64"), 8, "s")
    (found,), kept = step_peaks(plan), memory(plan)
    assert found.doing == "reduce"
    assert found.parts["buckets"] == found.parts["gradients"] == kept.gradients


def test_the_last_sum_of_a_microbatch_is_there_in_the_next_one() -> None:
    """ZeRO's: until the next one begins. In the third its rows are among the gradients too."""
    rules, embed = "mesh dp = 2\n  split batch over dp\n  zero ZERO over dp\n  bucket gradients 1KB", 2048 * 128 * 4
    for zero, microbatches, at, there in (("2", 1, 0, 0), ("1", 2, 1, 0), ("2", 4, 2, embed + embed // 2)):
        text = rules.replace("ZERO", zero) + f"\n  microbatches {microbatches}"
        plan = planned(LLAMA.replace("RULES", text).replace("VOCAB", "2048"), 2, "s")
        *passes, update = peaks_by_action(plan, 0)
        found = max(passes, key=lambda each: each.bytes)
        assert found.doing == "backward" and found.parts.get("buckets", 0) == there
        assert found.microbatch == at
        # What has been updated comes whole, beside the rows that this rank gives and their gradients.
        parts, weights = update.parts, memory(plan).parameters
        assert parts["collectives"] == weights + weights // 2 and parts["gradients"] == weights // 2


def test_what_is_computed_again_is_there_for_one_layer() -> None:
    whole, again = peak("mesh dp = 1", vocab=64), peak("mesh dp = 1\n  at blocks[*]: recompute", vocab=64)
    assert again.parts["activations"] < whole.parts["activations"] / 2
    assert again.doing in ("again", "backward")


def test_what_a_backward_in_two_halves_holds_is_said_to_be_missing() -> None:
    rules = 'mesh pp = 2\n  stages over pp balanced\n  microbatches 4\n  schedule "SCHEDULE"'
    told = []
    for schedule in ("1f1b", "zero_bubble"):
        text = LLAMA.replace("RULES", rules.replace("SCHEDULE", schedule)).replace("VOCAB", "64")
        told.append(lacks(planned(text, 2, "s")))
    assert told == [None, "what a backward that is cut in two holds between its halves"]


@pytest.mark.parametrize("schedule", ["zero_bubble", "dualpipe_v"])
def test_activations_go_once_where_a_backward_is_cut_in_two(schedule: str) -> None:
    virtual = ", virtual = 2" if schedule == "dualpipe_v" else ""
    rules = f'mesh pp = 2\n  stages over pp balanced{virtual}\n  microbatches 4\n  schedule "{schedule}"'
    plan = planned(LLAMA.replace("RULES", rules).replace("VOCAB", "64"), 2, "s")
    for coordinate in range(2):
        seen = peaks_by_action(plan, coordinate)
        assert min(each.bytes for each in seen) > 0
        assert all(size >= 0 for each in seen for size in each.parts.values())
        here: Counter[str] = Counter()
        for what, _, size in steps_of_memory(plan, coordinate):
            here[what] += size
            assert here[what] >= 0, what


APART = """
use std.nn: Linear

dim batch = 8, d = 4

model Doubled {
  forward(x: [batch, d]) -> [batch, d] {
    return 2 * x
  }
}

model Apart {
  layer left = Doubled()
  layer right = Linear(d, d)

  forward(x: [batch, d], y: [batch, d]) -> [batch, d] {
    seen = left(x)
    return right(y)
  }
}

strategy s {
  mesh pp = 2
  stages over pp {
    0: left
    1: right
  }
  microbatches 2
}

train {
  model = Apart()
  data = random(x: [batch, d], y: [batch, d], label: [batch, d], batches = 2)
  loss = mse_loss(model(x, y), label)
  metric left = mean(model.seen)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def test_a_stage_may_receive_nothing() -> None:
    plan = planned(APART, 2, "s")
    assert messages(plan)[1] == (0, 0) and len(step_peaks(plan)) == 2


DETACHED = """
dim batch = 8, inputs = 8, hidden = 16

model Net {
  param fixed: [hidden, inputs] = normal(0.1)
  param trained: [inputs, hidden] = normal(0.1)

  forward(x: [batch, inputs]) -> [batch, inputs] {
    seen = einsum(relu(einsum(x, trained -> [batch, hidden])), detach(fixed) -> [batch, inputs])
    return seen
  }
}

strategy s {
  mesh dp = 2
  split batch over dp
  zero 3 over dp
}

train {
  model = Net()
  data = random(x: [batch, inputs], label: [batch, inputs], batches = 2)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def test_a_gathered_parameter_may_be_read_by_a_view_of_it() -> None:
    (found,) = step_peaks(planned(DETACHED, 2, "s"))
    assert found.parts["gathered parameters"] > 0
