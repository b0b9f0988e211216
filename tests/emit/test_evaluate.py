"""`eval`: what becomes a sum and a count, what is finished from the totals, and what cannot be."""

from __future__ import annotations

import pytest

from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.driver import check_strategies
from shardlang.emit.emit import emit
from shardlang.folds.planned import plan
from tests.emit import sources

PROGRAM = """\
use std.nn: Dropout, Linear

dim batch = 16, input = 8, output = 4

model Net {
  layer fc = Linear(input, output)
  layer drop = Dropout()

  forward(x: [batch, input]) -> [batch, output] {
    h = fc(x) |> drop
    return h
  }
}

strategy both {
  mesh dp = 2, mp = 2
  split batch over dp
  split input over mp
}

train {
  model = Net()
  data = random(x: [batch, input], label: [batch, output], batches = 2)
  eval = random(x: [batch, input], label: [batch, output], batches = 2, seed = 3)
  scores = model(x)
  loss = mse_loss(scores, label)
  metric m = METRIC
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def text_of(metric: str, sink: Sink | None = None) -> str:
    program = sources.checked(PROGRAM.replace("METRIC", metric))
    found = plan(program, None, 4, Sink())
    assert found is not None
    return emit(found, sink)["main.py"]


def part(text: str, start: str) -> str:
    """A function of the emitted file."""
    return text[text.index(start) :].split("\n\n\n")[0]


def test_dropout_is_left_out() -> None:
    text = text_of("mean(scores)")
    assert "rt.dropout" in part(text, "def forward")
    assert "rt.dropout" not in part(text, "def evaluate")


def test_what_follows_a_mean_is_computed_once_from_the_totals() -> None:
    text = text_of("sqrt(mean(square(scores - label)))")
    assert "torch.sqrt" not in part(text, "def evaluate")
    finish = part(text, "def finish")
    assert 'totals["m:1"][0] / totals["m:1"][1]' in finish
    assert "torch.sqrt" in finish


def test_totals_are_summed_over_the_axes_that_split_what_is_reduced() -> None:
    assert 'eval_pending={"loss:1": ("dp", "mp"), "m:1": ("dp", "mp")}' in text_of("mean(scores)")


def test_a_constant_is_applied_to_the_whole() -> None:
    text = text_of("mean(scores) * 2")
    assert "* 2" in part(text, "def finish")


def test_an_operator_without_operands_reduces_nothing() -> None:
    assert "rt.arange(" in text_of("mean(scores * cast(arange(output), f32))")


@pytest.mark.parametrize(
    "metric", ["amax(scores)", "amax(scores) * 2.0", "sqrt(amax(scores)) + 1.0", "mean(square(scores - mean(scores)))"]
)
def test_what_cannot_be_accumulated_is_named(metric: str) -> None:
    sink = Sink()
    text = text_of(metric, sink)
    assert [d.code for d in sink.found] == ["SH400"]
    assert "`m`" in sink.found[0].message
    assert "def evaluate" not in text
    with pytest.raises(InternalError, match="eval cannot accumulate"):
        text_of(metric)


def test_what_cannot_be_accumulated_is_told_without_emitting() -> None:
    program = sources.checked(PROGRAM.replace("METRIC", "amax(scores)"))
    assert check_strategies(program, None, 4, sink := Sink()) is None
    assert [d.code for d in sink.found] == ["SH400"]


def test_a_sum_over_the_set_is_not_divided() -> None:
    finish = part(text_of("sum(scores)"), "def finish")
    assert 'm = totals["m:1"][0]\n' in finish
    assert 'loss = totals["loss:1"][0] / totals["loss:1"][1]\n' in finish
