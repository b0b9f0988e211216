"""`lr` and `grad_norm` in `train`: names of the run, where the program has none of these names."""

from __future__ import annotations

import pytest

from tests.check.checked import checked, net


def train(*lines: str, data: str = "x: [batch, d], label: [batch, d]", loss: str = "mse_loss(model(x), label)") -> str:
    more = "\n".join(f"  {line}" for line in lines)
    return f"""
train {{
  model = Net()
  data = random({data}, batches = 4)
  loss = {loss}
{more}
  optimizer = sgd(lr = 0.1)
  epochs = 1
}}
"""


def told(*lines: str, dims: str = "batch = 8, d = 16", **more: str) -> list[str]:
    return checked(net("return x * w", rest=train(*lines, **more), dims=dims)).messages


def test_a_metric_of_them_is_apart_from_the_graph() -> None:
    found = checked(net("return x * w", rest=train("metric m = lr * mean(x) + grad_norm", "metric n = mean(x)")))
    training = found.program.training if found.program is not None else None
    assert training is not None and training.late is not None
    late = training.late
    assert [late.values[v].name for v in late.data] == ["lr", "m:1", "grad_norm"]
    assert [op.operator for op in late.ops] == ["mul", "add"] and list(late.metrics) == ["m"]
    assert list(found.graph.metrics) == ["n", "m:1"] and training.measured
    assert all(value.name not in ("lr", "grad_norm") for value in found.graph.values)


def test_the_norm_is_measured_only_where_a_metric_asks() -> None:
    found = checked(net("return x * w", rest=train("metric m = lr * 2")))
    assert found.program is not None and found.program.training is not None and not found.program.training.measured


@pytest.mark.parametrize(("dims", "data", "line"), [
    (", lr = 3", "", ""), ("", "", "lr = mean(x)"), ("", ", lr: [batch, d]", ""),
])  # fmt: skip
def test_a_name_of_the_program_is_what_it_was(dims: str, data: str, line: str) -> None:
    """A dim of the file, a value of `train` and a field of the data."""
    lines = [*([line] if line else []), "metric m = mean(x * lr)"]
    rest = train(*lines, data=f"x: [batch, d], label: [batch, d]{data}")
    found = checked(net("return x * w", rest=rest, dims=f"batch = 8, d = 16{dims}"))
    assert found.messages == [] and found.program is not None and found.program.training is not None
    assert found.program.training.late is None


BEST = "evaluate = every(2, best = lowest(m), patience = 2)"
EVAL = "eval = random(x: [batch, d], label: [batch, d], batches = 1)"


@pytest.mark.parametrize(("lines", "loss", "message"), [
    ([], "mse_loss(model(x), label) + grad_norm",
     "SH243: the loss uses `grad_norm`, which is known only after its backward"),
    ([], "lr * mse_loss(model(x), label)", "SH243: the loss uses `lr`, a figure of the step"),
    ([], "mse_loss(model(x * sqrt(lr)), label)", "SH243: the loss uses `lr`, a figure of the step"),
    (["metric m = mean(x * lr)"], "", "SH243: metric `m` computes a value with dims from `lr`"),
    (["metric m = sum(lr * mean(model(x), over = d))"], "", "SH243: metric `m` computes a value with dims from `lr`"),
    (["metric m = lr", "lr = mean(x)"], "", "SH200: there is no `lr` here"),
    (["metric lr = mean(x)"], "", "SH201: `lr` is a column of the log already"),
    (["metric m = grad_norm(x)"], "", "SH214: `grad_norm` is a figure of the step and cannot be called"),
    (["metric m = lr", BEST, EVAL], "", "SH237: an evaluation has no figure `m`"),
    (["optimizer at w = sgd(lr = lr)"], "", "SH210: `lr` must be known before the run, and this is a tensor"),
])  # fmt: skip
def test_they_are_for_metrics_alone(lines: list[str], loss: str, message: str) -> None:
    found = told(*lines, **({"loss": loss} if loss else {}))
    assert found == [message]
