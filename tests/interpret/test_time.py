"""What microbatches compute, on simulated ranks against one device: the axis in time is one more axis."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.folds.report import report
from shardlang.plan.plan import Plan
from shardlang.step.phases import phases
from tests.emit import sources
from tests.interpret.verify_plan import verify_plan
from tests.plan.small import example, strategy

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def agrees(text: str, ranks: int, strategy: str | None = None, steps: int = 2) -> Plan:
    plan = sources.planned(text, ranks, strategy)
    found = verify_plan(plan, steps=steps)
    assert found.ok, str(found.difference)
    return plan


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("rules", [
    "mesh dp = 2; split batch over dp",
    "mesh mp = 2; split hidden over mp",
    "mesh dp = 2, mp = 2; split batch over dp; split hidden over mp",
    "mesh dp = 2; split batch over dp; zero 3 over dp",
])  # fmt: skip
def test_digits(rules: str, count: int) -> None:
    ranks = 4 if "mp" in rules and "dp" in rules else 2
    plan = agrees(example("digits", strategy(f"{rules}; microbatches {count}")), ranks)
    assert plan.microbatches == count
    assert plan.ranks == ranks
    assert all(m.time is not None and m.time.size == count for m in plan.meshes)


def test_one_microbatch_is_none() -> None:
    assert agrees(example("digits", strategy("mesh dp = 2; split batch over dp; microbatches 1")), 2).microbatches == 1


def test_positional_rules_with_several_meshes() -> None:
    agrees(example("quickstart", strategy("at h: shard ((2, 4), (4, 1)); microbatches 4")), 8)
    rules = "at h: shard ((2, 3), (3, 1)); at y: shard ((3, 2), (2, 1)); microbatches 2"
    text = example("quickstart", strategy(rules), batch="24", input="12", hidden="24", output="6")
    assert len(agrees(text, 6).meshes) == 2


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("count", [2, 4])
def test_mnist_with_dropout(ranks: int, count: int) -> None:
    text = (EXAMPLES / "mnist_ddp.shard").read_text()
    agrees(text.replace("over dp", f"over dp\n  microbatches {count}"), ranks, "ddp", steps=1)


MASKED = """
use std.nn: Dropout, Linear

dim batch = 16, seq = 6, classes = 8

model Net(d: dim = 12) {
  layer up = Linear(classes, d)
  layer drop = Dropout(0.3)
  layer down = Linear(d, classes)
  param g: [d] = ones()
  forward(x: [batch, seq, classes]) -> [batch, seq, classes] {
    h = up(x) |> gelu |> drop
    k = h * tanh(g)          # of the parameter alone: once a microbatch, its gradients add up
    return down(k)
  }
}

strategy s {
  mesh dp = auto, mp = 2
  split batch over dp
  split d over mp
  microbatches 4
}

train {
  model = Net()
  data = random(x: [batch, seq, classes], label: i64[batch, seq] < 8, batches = 4, seed = 1)
  scores = model(x)
  loss = cross_entropy(scores, label, ignore_index = 0) + 0.01 * sum(tanh(model.g) * model.g)
  metric accuracy = mean(argmax(scores, over = classes) == label)
  metric perplexity = exp(loss)
  optimizer = adamw(lr = 0.1)
  epochs = 1
}
"""


def test_masked_loss_a_term_without_the_batch_and_a_metric_of_the_total() -> None:
    plan = agrees(MASKED, 4)
    graph, found = plan.graph, phases(plan)
    names = {v.path: v.id for v in graph.values}
    operators = {graph.ops[plan.ops[s.index].op].operator for s in found.body if s.kind == "op"}
    assert {plan.conversions[at].value for at in found.totals} == {names["train.loss:1:count"]}
    assert [graph.ops[plan.ops[s.index].op].operator for s in found.ahead if s.kind == "op"] == ["kept_count"]
    assert [graph.ops[plan.ops[s.index].op].operator for s in found.after if s.kind == "op"] == ["exp"]
    assert {plan.conversions[at].value for at in found.sums} == {graph.loss}
    assert {"einsum", "cross_entropy", "dropout", "tanh"} <= operators


def test_what_single_examples_have_of_a_total_is_made_with_their_microbatch() -> None:
    loss = "sum(mean(square(scores), over = classes) * share)"
    text = MASKED.replace("cross_entropy(scores, label, ignore_index = 0)", loss)
    shares = "  masked = cast(label != 0, f32)\n  n = sum(masked)\n  share = masked / n\n"
    plan = agrees(text.replace("  loss =", f"{shares}  loss ="), 4)
    graph, found = plan.graph, phases(plan)
    body, known = (
        {graph.values[v].path for s in steps if s.kind == "op" for v in graph.ops[plan.ops[s.index].op].results}
        for steps in (found.body, found.known)
    )
    assert {graph.values[plan.conversions[at].value].path for at in found.totals} == {"train.n"}
    assert "train.share" in body and known == set()


def test_layouts_for_people_say_nothing_of_time() -> None:
    told = str(report(sources.planned(MASKED, 4)))
    assert "microbatch@" not in told and "@microbatch" not in told
