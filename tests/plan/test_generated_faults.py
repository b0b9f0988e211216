"""Faults that generated pairs have found in rules and plans, each the smallest program that showed it."""

from __future__ import annotations

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.interpret.verify_plan import verify_plan
from tests.plan.test_uneven import planned

IN_PARTS = """
dim batch = 12, seq = 3, width = 4

model Net {
  param p: [width] = normal(0.5)

  forward(x: [batch, seq, width]) -> [batch, seq, width] {
    y = x * p
    return y
  }
}

strategy s {
  RULE
  microbatches COUNT
}

train {
  model = Net()
  data = random(x: [batch, seq, width], label: i64[batch, seq] < width, batches = 2)
  out = model(x)
  loss = cross_entropy(out, label, ignore_index = 0)
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""


def reported(text: str, ranks: int) -> list[str]:
    sink = Sink()
    program = driver.check_source(Source("fault.shard", text), sink)
    if program is not None:
        driver.plan_program(program, None, ranks, sink)
    return [d.code for d in sink.found]


def in_parts(rule: str, count: int) -> str:
    return IN_PARTS.replace("RULE", rule).replace("COUNT", str(count))


def test_what_a_positional_rule_hands_on_divides_into_microbatches_too() -> None:
    """12 examples in 6 parts are 2 each, which do not divide over 3 ranks."""
    rule = "at y: shard ((1, 1, 1), (1,)) -> ((3, 1, 1))"
    assert reported(in_parts(rule, 6), 3) == ["SH411"]
    report = verify_plan(planned(in_parts(rule, 4), 3))
    assert report.ok, str(report.difference)


@pytest.mark.parametrize(("mesh", "field", "fits", "unfit"), [
    ("a = 2", "x: [batch@a, seq, width]", 3, 4), ("a = 2, b = 3", "label: [batch@(a, b), seq]", 2, 3),
])  # fmt: skip
def test_data_that_are_pinned_divide_into_microbatches_too(mesh: str, field: str, fits: int, unfit: int) -> None:
    """The counts divide the 12 examples, and one of each two not what a rank loads. No rule splits what is computed."""
    rule, ranks = f"mesh {mesh}\n  at train.{field}", 6 if "b" in mesh else 2
    assert reported(in_parts(rule, unfit), ranks) == ["SH411"]
    report = verify_plan(planned(in_parts(rule, fits), ranks))
    assert report.ok, str(report.difference)


@pytest.mark.parametrize("count", [2, 4])
def test_what_is_stored_need_not_divide_into_microbatches(count: int) -> None:
    """A parameter with the dim of the batch is there in every microbatch, so 4 of them may divide 12 and not the 6."""
    text = in_parts("mesh a = 2\n  at p: [batch@a, width]", count)
    text = text.replace("p: [width]", "p: [batch, width]").replace("x * p", "x * rearrange(p -> [batch, 1, width])")
    report = verify_plan(planned(text, 2))
    assert report.ok, str(report.difference)


@pytest.mark.parametrize("rule", ["((2, 1, 1), (2, 1))", "((1, 3, 1), (1, 3))", "((2, 3, 1), (2, 3))"])
def test_a_rule_of_a_loss_does_not_speak_of_the_count_that_microbatches_add(rule: str) -> None:
    report = verify_plan(planned(in_parts(f"at train.loss: shard {rule}", 3), 6))
    assert report.ok, str(report.difference)


@pytest.mark.parametrize("schedule", ["linear", "warmup_cosine"])
def test_a_schedule_is_that_of_the_steps_that_are_verified(schedule: str) -> None:
    rate = f"optimizer = sgd(lr = 0.1)\n  lr_schedule = {schedule}(warmup = 1, min = 1e-3)"
    text = in_parts("mesh a = 2\n  split batch over a", 2).replace("optimizer = sgd(lr = 0.1)", rate)
    report = verify_plan(planned(text, 2), steps=3)
    assert report.ok and report.step == 3, report.difference


# The second look at layouts took `a` from `maps`, the major factor of what `flatten` makes.
MINOR = """
use std.nn: Linear, MLP

dim seq = 4, batch = 8, chan = 4, maps = 2

model Net {
  dim r6 = 3, r7 = 3
  param p8: [maps, chan, r6, r7] = normal(0.3)
  state s10: [maps] = zeros()
  state s11: [maps] = ones()
  layer fc13 = Linear(24, seq)
  state s15: [seq] = zeros()
  state s16: [seq] = ones()
  layer mlp23 = MLP(seq, 2 * seq)
  param p25: [1, seq] = kaiming_uniform(4)

  forward(x: [batch, chan, 8, 4]) {
    v3 = softmax(x, over = chan)
    v9 = conv2d(v3, p8)
    v12 = batch_norm(v9, s10, s11)
    v14 = flatten(v12, keep = batch) |> fc13
    v19 = batch_norm(v14, s15, s16)
    v20 = sum(v19, over = seq)
    v22 = v19 * (rearrange(v20 -> [batch, 1]))
    v24 = tanh(mlp23(v22))
    v26 = v22 + p25
    return v26
  }
}

strategy s {
  mesh a = 2, cp = 4, dp = 3
  split mlp23.d over a?
  split batch over dp uneven
  at v3: shard ((1, 2, 2, 2))
}

train {
  model = Net()
  data = random(x: [batch, chan, 8, 4], target: [batch, seq], keep: [batch, seq], batches = 2)
  out = model(x)
  loss = bce_with_logits(out, target) + 0.1 * mean(square(model.v24))
  kept = cast(cast(keep > 0.3, i64), f32)
  right = sum(cast(out > 0.3, f32) * kept)
  share = sum(kept) / 192
  metric m0 = right / 192 / share
  optimizer = lazy_adam(lr = 1e-2, eps = 1e-3)
  steps = 3
}
"""


def test_an_axis_is_not_taken_from_a_factor_while_a_minor_one_stays_cut() -> None:
    plan = planned(MINOR, 24)
    report = verify_plan(plan)
    assert report.ok, str(report.difference)
