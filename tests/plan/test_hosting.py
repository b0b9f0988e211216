"""Places: which values are on the host, the copies between, their bytes, and memory against the device's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import check_source
from shardlang.folds.planned import plan
from shardlang.folds.report import report
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source

PROGRAM = """
dim batch = 64, fields = 8, vocab = VOCAB, width = 100
device card {
  memory = 80GB
}
model Clicks {
  param table: [vocab, width] = normal(0.01)
  param w: [width, 1] = normal(0.01)
  forward(ids: i64[batch, fields]) -> [batch, 1] {
    rows = embedding(ids, table)
    pooled = sum(rows, over = fields)
    return pooled @ w
  }
}
strategy s {
  mesh mp = auto
  split vocab over mp
  RULES
}
train {
  model = Clicks()
  data = random(ids: i64[batch, fields] < VOCAB, label: [batch, 1], batches = 4, seed = 1)
  loss = bce_with_logits(model(ids), label)
  optimizer at table = lazy_adam(lr = 1e-3)
  optimizer = adam(lr = 1e-3)
  steps = 4
}
"""


def planned(rules: str, vocab: int = 1_250_000_000, text: str = PROGRAM) -> tuple[Plan | None, Sink]:
    source = Source("clicks.shard", text.replace("RULES", rules).replace("VOCAB", str(vocab)))
    sink = Sink()
    program = check_source(source, sink)
    assert program is not None, sink.found
    return plan(program, None, 8, sink), sink


def made(rules: str, vocab: int = 1_250_000_000, text: str = PROGRAM) -> tuple[Plan, dict[str, Any]]:
    found, sink = planned(rules, vocab, text)
    assert found is not None, sink.found
    return found, report(found)


def test_a_table_that_no_device_holds_is_an_error_with_the_line_to_type() -> None:
    found, sink = planned("")
    assert found is None
    (mistake,) = sink.found
    assert mistake.code == "SH450"
    assert "`table`" in mistake.message
    assert "80.0 GB" in mistake.message
    assert "at table: place on host" in str(mistake.help)


def test_on_the_host_the_plan_says_what_is_where() -> None:
    _, found = made("at table: place on host")
    per_rank = found["per_rank"]
    table = 1_250_000_000 * 100 * 4
    assert per_rank["host_bytes"] >= 3 * table // 8
    assert per_rank["device_bytes"] < 10_000_000
    assert per_rank["device_memory_bytes"] == 80_000_000_000
    assert per_rank["device_bytes"] + per_rank["host_bytes"] == per_rank["total_bytes"]
    assert {p["path"]: p["place"] for p in found["parameters"]} == {"table": "host", "w": "device"}


def test_a_lookup_runs_where_its_table_is_and_sends_rows() -> None:
    found, shown = made("at table: place on host", 1000)
    graph = found.graph
    by_name = {graph.values[v].path for v in found.memory_of}
    assert by_name == {"table", "rows", "train.ids"}
    copies = [o for o in shown["operators"] if o["operator"] == "to_device"]
    assert [c["name"] for c in copies] == ["rows@device"]
    assert shown["per_rank"]["to_device_bytes"] == copies[0]["copied_bytes"][0] > 0
    assert shown["per_rank"]["to_host_bytes"] == copies[0]["copied_bytes"][1] > 0


@pytest.mark.parametrize(
    ("rules", "hosted", "copies"),
    [
        ("at rows: place on host", {"rows", "train.ids"}, {"table@host", "rows@device"}),
        ("at table: place on host; at rows: place on device", {"table"}, {"table@device"}),
        ("at pooled: place on host", {"pooled"}, {"rows@host", "pooled@device"}),
        ("at **: place on host; at pooled: place on device", None, None),
        ("at pooled: place on device", set(), set()),
    ],
)
def test_copies(rules: str, hosted: set[str] | None, copies: set[str] | None) -> None:
    found, _ = made(rules.replace("; ", "\n  "), 1000, PROGRAM.replace("lazy_adam", "adam"))
    values = found.graph.values
    made_by = {values[op.results[0]].path for op in found.graph.ops if op.operator in ("to_host", "to_device")}
    if copies is not None:
        assert made_by == copies
        on_host = {*(hosted or ()), *(c for c in copies if c.endswith("@host"))}
        assert {values[v].path for v in found.memory_of} == on_host
    for op in found.graph.ops:
        places = {found.memory_of.get(v) for v in op.operands if values[v].constant is None}
        assert len(places) <= 1, op
        if op.operator not in ("to_host", "to_device"):
            assert places <= {found.memory_of.get(op.results[0])}, op
    assert found.graph.loss not in found.memory_of


def test_rules_that_disagree() -> None:
    _, sink = planned("at rows: place on host\n  at rows: place on device", 1000)
    assert [d.code for d in sink.found] == ["SH309"]


def test_rows_are_what_a_gradient_of_a_table_takes() -> None:
    _, found = made("", 1_000_000)
    small = made("", 2_000_000)[1]
    assert found["per_rank"]["gradients_bytes"] == small["per_rank"]["gradients_bytes"] < 1_000_000
    assert Path(found["program"]).name == "clicks.shard"


LAYERS = """
dim batch = 16, d = 4
model Part(q: dim) {
  param scale: [] = ones()
  forward(x: [batch, q]) -> [batch, q] {
    return x * scale
  }
}
model Net {
  state alone: TYPE[] = ones()
  layer first = Part(d)
  layer second = Part(d)
  forward(x: [batch, d]) -> [batch, d] {
    return first(x) |> second
  }
}
strategy s {
  RULES
  at alone: place on host
}
train {
  model = Net()
  data = random(x: [batch, d], batches = 2)
  loss = mean(square(model(x)))
  metric m = model.alone
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""
SPLIT = "mesh dp = auto\n  split batch over dp\n  microbatches 2"
STAGES = f"{SPLIT}\n  stages over pp {{\n    0: first\n    1: second\n  }}".replace("mesh", "mesh pp = 2,")


@pytest.mark.parametrize("element", ["", "i64"])
@pytest.mark.parametrize("rules", [SPLIT, STAGES])
def test_a_leaf_that_a_metric_alone_reads_is_copied_for_it(element: str, rules: str) -> None:
    """A state: the loss reads each parameter too, and a field is never one number."""
    found, _ = made(rules, text=LAYERS.replace("TYPE", element))
    copied = [op for op in found.graph.ops if op.operator == "to_device"]
    assert [(found.graph.values[op.operands[0]].path, op.section) for op in copied] == [("alone", "metric")]
    assert found.graph.metrics == {"m": copied[0].results[0]}
