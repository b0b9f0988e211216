"""Mistakes in strategies that once got no text, or one that did not help."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from tests.emit import sources

PROGRAM = """
dim batch = 8, heads = 4, head_dim = 6

model Net {
  param w: [heads, head_dim] = ones()

  forward(x: [batch, heads * head_dim]) -> [batch, heads, head_dim] {
    z = rearrange(x -> [batch, heads, head_dim])
    return z * w
  }
}

strategy s {
  mesh dp = 2, mp = 1
  split batch over dp
RULES
}

train {
  model = Net()
  data = random(x: [batch, heads * head_dim], batches = 4)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def planned(rules: str, ranks: int | None, given: Mapping[str, str]) -> tuple[Plan | None, list[Diagnostic]]:
    sink = Sink()
    text = PROGRAM.replace("RULES", "\n".join(f"  {line}" for line in rules.splitlines()))
    program = driver.check_source(Source("s.shard", text), sink, given)
    plan = driver.check_strategies(program, None, ranks, sink) if program is not None else None
    return plan, sink.found


def test_an_axis_may_be_set_to_auto() -> None:
    plan, found = planned("", 8, {"s.dp": "auto"})
    assert not found
    assert plan is not None and plan.meshes[0].axis_size("dp") == 8


def test_two_axes_that_are_auto_are_left_open() -> None:
    _, found = planned("", 8, {"s.dp": "auto", "s.mp": "auto"})
    said = "strategy `s` leaves 2 things open, and only a whole strategy can be planned"
    assert [(d.code, d.message) for d in found] == [("SH325", said)]


@pytest.mark.parametrize("size", ["10 ** 9", "1_048_577"])
def test_an_axis_set_to_too_much(size: str) -> None:
    _, found = planned("", None, {"s.dp": size})
    assert found[0].code == "SH319"
    assert found[0].primary is not None and "1,048,576" in found[0].primary.text


@pytest.mark.parametrize(
    "rule", ["microbatches 4", "mesh cp = 2", 'schedule "1f1b"', "bucket gradients 25MB", "strict"]
)
@pytest.mark.parametrize("form", ["at z: {}", "at z {{\n  {}\n}}"])
def test_rules_of_the_whole_strategy_are_none_of_a_selector(rule: str, form: str) -> None:
    (found,) = planned(form.format(rule), None, {})[1]
    word = rule.split()[0]
    assert (found.code, found.message) == (
        "SH101",
        f"`{word}` is a rule of the whole strategy, and this is inside of `at`",
    )
    assert found.primary is not None and found.primary.span.text == word


def test_an_at_in_another() -> None:
    (found,) = planned("at z: at w: split batch over dp", None, {})[1]
    assert found.message == "an `at` is not allowed in another"


def test_an_at_without_rules() -> None:
    (found,) = planned("at z { }", None, {})[1]
    assert (found.code, found.message) == ("SH321", "this `at` has no rule")


def test_a_minor_factor_shows_what_would_fit() -> None:
    (found,) = planned("split head_dim over mp", 4, {"s.mp": "2"})[1]
    assert (found.code, found.help) == (
        "SH305",
        ("split `heads` over 2 or 4 ranks instead, or over exactly 4 ranks first: then what is left may be cut",),
    )


TWICE = """
use std.nn: Conv1d

dim batch = 8, width = 4

model Net {
  layer mix = Conv1d(width, width, 3, padding = 1)

  forward(x: [batch, width, 6]) -> [batch, width, 6] {
    return mix(x)
  }
}

strategy s {
  mesh mp = 2
  RULE
}

train {
  model = Net()
  data = random(x: [batch, width, 6], batches = 4)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def test_the_pin_that_is_offered_for_a_dim_that_is_twice_names_all_dims() -> None:
    found = []
    for rule in ("split width over mp", "at mix.weight: [width@mp, width, places]"):
        driver.check_strategies(sources.checked(TWICE.replace("RULE", rule)), None, 2, sink := Sink())
        found.append([(d.code, d.help) for d in sink.found])
    assert found == [[("SH311", ("pin the value instead: `at mix.weight: [width@mp, width, places]`",))], []]
