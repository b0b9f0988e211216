"""Frozen parameters: those that the loss reads through `detach` alone. What is said of others that nothing trains."""

from __future__ import annotations

import pytest

from tests.check.checked import Checked, checked

TEXT = """
use std.nn: Linear

dim batch = 8, d = 16, classes = 4

model Net {
  layer teacher = Linear(d, classes)
  layer student = Linear(d, classes)

  forward(x: [batch, d]) -> [batch, classes] {
    scores = student(x)
    BODY
    return scores
  }
}

train {
  model = Net()
  data = random(x: [batch, d], label: i64[batch] < classes, batches = 4)
  scores = model(x)
  loss = cross_entropy(scores, label) + LOSS
  METRIC
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def net(body: str, loss: str, metric: str = "") -> Checked:
    return checked(TEXT.replace("BODY", body).replace("LOSS", loss).replace("METRIC", metric))


@pytest.mark.parametrize(
    ("body", "loss"),
    [
        ("taught = detach(teacher(x))", "mean(abs(scores - model.taught))"),
        ("taught = softmax(teacher(x), over = classes)", "mean(abs(scores - detach(model.taught)))"),
        ("taught = einsum(x, detach(teacher.weight) -> [batch, classes]) + detach(teacher.bias)", "mean(model.taught)"),
        ("taught = detach(argmax(teacher(x), over = classes))", "cross_entropy(scores, model.taught)"),
        ("taught = argmax(detach(teacher(x)), over = classes)", "cross_entropy(scores, model.taught)"),
    ],
)
def test_detach_on_the_way_to_the_loss_freezes(body: str, loss: str) -> None:
    found = net(body, loss)
    assert found.messages == []
    frozen = [v.path for v in found.graph.values if found.graph.frozen(v.id)]
    assert frozen == ["teacher.weight", "teacher.bias"]
    assert found.program is not None and found.program.training is not None
    (optimizer,) = found.program.training.optimizers
    assert [found.graph.values[p].path for p in optimizer.params] == ["student.weight", "student.bias"]


def test_what_a_gradient_reaches_on_another_way_is_trained() -> None:
    found = net("taught = teacher(x)", "mean(abs(detach(model.taught) - model.taught))")
    assert not [v for v in found.graph.values if found.graph.frozen(v.id)]


@pytest.mark.parametrize(
    ("body", "loss", "metric", "what", "help"),
    [
        ("", "0.0", "", "layer `teacher`", "call it, or leave it out"),
        ("taught = argmax(teacher(x), over = classes)", "cross_entropy(scores, model.taught)", "", "layer `teacher`",
         "no gradient passes `argmax`: if its weights are to stay as they are, write `detach` around what it gives"),
        ("taught = cast(teacher.weight, i64)", "mean(cast(model.taught, f32))", "", "layer `teacher`", "passes `cast`"),
        ("taught = teacher(x)", "0.0", "metric far = mean(abs(scores - model.taught))", "layer `teacher`",
         "what it gives does not reach the loss: use what it gives there, through `detach`"),
        ("taught = teacher(x) + student.bias", "mean(teacher.bias > 0.0)".replace("teacher", "model.teacher"),
         "metric far = mean(model.taught)", "layer `teacher`", "does not reach the loss"),
    ],
)  # fmt: skip
def test_what_nothing_trains_is_told_with_what_to_do(body: str, loss: str, metric: str, what: str, help: str) -> None:
    found = net(body, loss, metric)
    told = [d for d in found.found if d.code in ("SH233", "SH223")]
    assert len(told) == len(found.found) == 1
    if told[0].code == "SH233":
        assert told[0].message == f"the loss does not depend on {what}"
        assert help in told[0].help[0]


def test_an_optimizer_of_what_is_frozen() -> None:
    text = TEXT.replace("BODY", "taught = detach(teacher(x))").replace("LOSS", "mean(abs(scores - model.taught))")
    found = checked(text.replace("METRIC", "optimizer at teacher = sgd(lr = 0.2)"))
    assert found.messages == ["SH238: `teacher` covers frozen parameters alone"]
    assert found.found[0].help == ("`detach` or `freeze` keeps them as they are: leave this out",)


FREEZE = """
use std.nn: Linear

dim batch = 8, d = 16, classes = 4

model Encoder {
  layer up = Linear(d, d)
  layer down = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    return x |> up |> tanh |> down
  }
}

model Net {
  layer encoder = Encoder()
  layer head = Linear(d, classes)

  forward(x: [batch, d]) -> [batch, classes] {
    return x |> encoder |> head
  }
}

train {
  model = Net()
  data = random(x: [batch, d], label: i64[batch] < classes, batches = 4)
  loss = cross_entropy(model(x), label)
  optimizer = sgd(lr = 0.1)
  LINES
  epochs = 1
}
"""
HEAD = ["head.weight", "head.bias"]


def freeze(*lines: str) -> Checked:
    return checked(FREEZE.replace("LINES", "\n  ".join(lines)))


@pytest.mark.parametrize(
    ("lines", "trained"),
    [
        (["freeze at encoder"], HEAD),
        (["freeze at encoder.up, encoder.down"], HEAD),
        (["freeze at encoder.up", "freeze at encoder.down"], HEAD),
        # An optimizer of frozen parameters alone takes them out, if it is more specific.
        (["freeze at **", "optimizer at head = sgd(lr = 0.2)"], HEAD),
        (["freeze at encoder", "optimizer at encoder.up.bias = sgd(lr = 0.2)"], ["encoder.up.bias", *HEAD]),
        # One that covers others too is a rule about kinds of parameters, and leaves them frozen.
        (["freeze at encoder", "optimizer at **.up.bias, head.bias = sgd(lr = 0.2)"], HEAD),
    ],
)
def test_freeze_keeps_parameters(lines: list[str], trained: list[str]) -> None:
    found = freeze(*lines)
    assert found.messages == [] and found.program is not None and found.program.training is not None
    graph = found.graph
    assert [graph.values[p].path for p in graph.params if not graph.frozen(p)] == trained
    of_optimizers = [p for each in found.program.training.optimizers for p in each.params]
    assert sorted(graph.values[p].path for p in of_optimizers) == sorted(trained)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["freeze at **"], "SH233: the loss does not depend on any parameter, so nothing can be trained"),
        (["freeze at encoder", "optimizer at encoder = sgd(lr = 0.2)"],
         "SH238: `encoder.up.weight` is frozen, and an optimizer trains it"),
        (["freeze at encoder.up", "optimizer at encoder.up.* = sgd(lr = 0.2)"], "SH238: `encoder.up.*` covers frozen"),
        (["freeze at encoder.x"], "SH308: `encoder.x` matches"),
        (["freeze at encode"], "SH308: `encode` matches nothing"),
        (["optimizer at head"], "SH111: `optimizer at head` lacks a `=` and a value"),
        (["frezee at head"], "SH111: `frezee at head` lacks a `=` and a value"),
    ],
)  # fmt: skip
def test_mistakes_of_freeze(lines: list[str], says: str) -> None:
    (message,) = freeze(*lines).messages
    assert message.startswith(says)


def test_a_misspelt_freeze_and_a_setting_without_a_value() -> None:
    helps = [freeze(line).found[0].help for line in ("frezee at head", "optimizer at head")]
    assert helps == [("did you mean `freeze`?",), ("write `optimizer at .. = ..`",)]
