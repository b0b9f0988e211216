"""Several losses: which parameters each trains, what is computed for each, and what is told of mistakes."""

from __future__ import annotations

import pytest

from shardlang.graph.graph import Kind
from tests.check.checked import Checked, checked

TEXT = """
use std.nn: Linear

dim batch = 8, d = 16

model Net {
  layer low = Linear(d, d)
  layer mid = Linear(d, d)
  layer top = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d], [batch, d] {
    h = low(x) |> tanh
    y = mid(h) |> dropout(p = 0.5)
    return y, top(y)
  }
}

train {
  model = Net()
  data = random(x: [batch, d], batches = 1)
  y, z = model(x)
  first = mean(square(y))
  second = mean(square(z))
  LOSSES
  metric shown = second
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def of(*lines: str) -> Checked:
    return checked(TEXT.replace("LOSSES", "\n  ".join(lines)))


def test_a_value_of_several_losses_is_computed_for_each() -> None:
    graph = of("loss at low, mid = first", "loss at top = second").graph
    assert graph is not None
    names = [op.operator for op in graph.ops]
    # The second loss is of `top` alone, which reads y detached: nothing is computed twice.
    assert names.count("einsum") == 3 and names.count("detach") == 1
    graph = of("loss at low, top = second", "loss at mid = first").graph
    assert graph is not None
    names = [op.operator for op in graph.ops]
    # `mid` is needed with its own weights trained, and with them detached; `low` once.
    assert names.count("einsum") == 4 and names.count("dropout") == 2
    drawn = [(op.path, op.call) for op in graph.ops if op.operator == "dropout"]
    assert len(set(drawn)) == 2  # two calls: random numbers of their own
    assert all(graph.values[p].gradient for p in graph.params)


def test_values_follow_what_they_are_made_of() -> None:
    graph = of("loss at low, top = second", "loss at mid = first").graph
    assert graph is not None
    for op in graph.ops:
        for value in op.operands:
            assert graph.values[value].kind is not Kind.RESULT or graph.producers[value] < op.id
    assert len({value.path for value in graph.values}) == len(graph.values)
    assert len(graph.addresses["mid.return"]) == 2  # `at mid: ..` covers both
    assert {"train.loss", "train.loss[0]", "train.loss[1]"} <= graph.addresses.keys()


def test_the_more_specific_loss_trains_a_parameter_and_a_plain_one_the_rest() -> None:
    for lines in (("loss = second", "loss at mid = first"), ("loss at mid = first", "loss at ** = second")):
        graph = of(*lines).graph
        assert graph is not None, lines
        assert [op.operator for op in graph.ops].count("einsum") == 4


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("loss at low = first", "loss at mid, top = first"), "SH233: the loss does not depend on layer `top`"),
        (("loss at lo = first", "loss at mid, top = second"), "SH308: `lo` matches nothing"),
        (("loss at train.y = first", "loss = second"), "SH238: `train.y` covers no parameter"),
        (("loss at low, mid = first", "loss at mid, top = second"), "SH238: two losses train `mid.weight`"),
        (("loss at low, mid = first", "loss at ** = second", "loss = second"), "SH238: this loss trains no parameter"),
        (("loss at low = y", "loss = second"), "SH232: the loss must be one number"),
        (("loss at top = first", "loss at ** = second"), "SH233: the loss does not depend on layer `top`"),
        (("loss at low = first",), "SH233: the loss does not depend on"),
        (("loss = first", "loss = second", "loss at low = second"), "SH201: `loss` is set twice"),
    ],
)
def test_what_is_told(lines: tuple[str, ...], told: str) -> None:
    found = of(*lines)
    assert [m for m in found.messages if m.startswith(told)], found.messages


def test_frozen_parameters_are_of_no_loss() -> None:
    graph = of("loss at low, mid = first", "loss = second", "freeze at mid").graph
    assert graph is not None
    assert {graph.values[p].path for p in graph.params if not graph.values[p].gradient} == {"mid.weight", "mid.bias"}


def test_what_the_user_detaches_is_of_no_loss() -> None:
    text = TEXT.replace("h = low(x) |> tanh", "h = detach(low(x)) |> tanh")
    found = checked(text.replace("LOSSES", "loss at mid = first\n  loss = second"))
    assert found.graph is not None, found.messages
    frozen = {found.graph.values[p].path for p in found.graph.params if not found.graph.values[p].gradient}
    assert frozen == {"low.weight", "low.bias"}


TWICE = """
model Both {
  layer norm = LayerNorm(d)
  layer fc = Linear(d, d)
  forward(x: [batch, d]) -> [batch, d] { return fc(norm(x)) |> dropout(p = 0.5) }
}
"""


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("lines", [
    ("loss at low, top = second", "loss at mid = first"), ("loss at low, mid = first", "loss at top = second"),
    ("loss at low, mid.fc = first", "loss at top, mid.norm = second"),
])  # fmt: skip
def test_a_layer_that_is_called_twice(lines: tuple[str, ...], precision: str) -> None:
    """Each value, a cast too, that is detached or computed again has a name of its own, and each dropout a number."""
    text = TEXT.replace("LOSSES", "\n  ".join(lines)).replace("steps = 1", f"precision = {precision}\n  steps = 1")
    text = text.replace("std.nn: Linear", "std.nn: LayerNorm, Linear").replace("\nmodel Net", f"{TWICE}\nmodel Net")
    text = text.replace("mid = Linear(d, d)", "mid = Both()").replace("y = mid(h)", "y = mid(mid(h))")
    found = checked(text)
    assert found.graph is not None, found.messages
    paths = [value.path for value in found.graph.values]
    assert len(set(paths)) == len(paths), sorted(path for path in paths if paths.count(path) > 1)
    assert ("mid.norm.return#1:bf16" in paths) == (precision == "bf16")
    drawn = [(op.path, op.call) for op in found.graph.ops if op.operator == "dropout"]
    assert len(set(drawn)) == len(drawn) >= 3


def parts(count: int, *more: str) -> list[str]:
    """What is told of a program whose `count` layers have a loss each, and behind them 700 products."""
    layers = "\n".join(f"  layer part{n} = Linear(d, d)" for n in range(count))
    joined = " + ".join(f"part{n}(h)" for n in range(count))
    steps = [f"w0 = {joined}", *(f"w{n} = w{n - 1} * h" for n in range(1, 701))]
    text = TEXT.replace("  layer top", f"{layers}\n  layer top")
    text = text.replace("y = mid(h) |> dropout(p = 0.5)", "\n    ".join([*steps, "y = mid(w700)"]))
    lines = [f"loss at part{n} = first" for n in range(count)]
    return checked(text.replace("LOSSES", "\n  ".join([*lines, *more]))).messages


def test_losses_stay_within_what_a_program_may_have() -> None:
    assert parts(32, "loss = second") == ["SH217: the program has 33 losses, more than 32"]


def test_copies_for_losses_count_as_operators() -> None:
    assert parts(31, "loss = second") == ["SH217: the program has more than 20,000 operators"]


NORM = """
use std.nn: GroupNorm

dim batch = 8, d = 16, h = 2, w = 3

model Net {
  param low: [d] = ones()
  layer norm = GroupNorm(2, d)

  forward(x: [batch, d, h, w]) -> [batch, d, h, w] {
    return norm(x * rearrange(low -> [d, 1, 1]))
  }
}

train {
  model = Net()
  data = random(x: [batch, d, h, w], batches = 1)
  y = model(x)
  loss = mean(square(y))
  loss at low = mean(abs(y))
  precision = PRECISION
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


@pytest.mark.parametrize("precision", ["f32", "bf16", "bf16(stream = bf16)"])
def test_a_detached_parameter_keeps_its_type(precision: str) -> None:
    """A norm reads its weight in f32, and so it does where another loss reads that through `detach`: what was
    converted for it lost its operand."""
    graph = checked(NORM.replace("PRECISION", precision)).graph
    for op in graph.ops:
        assert len(op.operands) == len(op.rule.operands), op
        if op.operator == "detach":
            (given,), (made,) = op.operands, op.results
            assert graph.values[given].type == graph.values[made].type
