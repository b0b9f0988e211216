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
    assert found.found[0].help == ("`detach` keeps them as they are: leave this optimizer out",)
