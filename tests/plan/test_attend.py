"""`attend` rules: what the plan has of them, and what is told of those that are wrong."""

from __future__ import annotations

import pytest

from shardlang.folds.report import report
from shardlang.step.saved_activations import saved_activations
from tests.emit import sources
from tests.emit.sources import planned
from tests.plan.small_llama import llama

CUT = "split seq over cp\n  "


def text(rules: str, ranks: str = "cp = 4", seq: int = 16) -> str:
    return llama(f"mesh {ranks}\n  {rules}", "bf16", seq)


def sent(rules: str) -> list[tuple[str, str, int, int]]:
    """What the first attention sends: the collective and the value, with bytes forward and backward."""
    plan = planned(text(rules), 4, "s")
    (op,) = (op for op in report(plan, each=True)["operators"] if op["name"] == "blocks[0].attention.mixed")
    collectives = (c for c in op["collectives"] if c["axes"] == ["cp"])
    return [(c["forward"], c["value"].rpartition(".")[2], c["forward_bytes"], c["backward_bytes"]) for c in collectives]


def test_bytes_are_those_of_the_table() -> None:
    """Of transformers.md: n = 4, queries of 8 * 4 * 4 * 8 elements in 2 bytes, keys and values of half as many each."""
    queries = keys = 8 * 4 * 4 * 8 * 2
    wide = 2 * keys
    gathered = [("all_gather", name, 3 * keys // 2, 3 * keys // 2) for name in ("keys", "values")]
    assert sent(CUT) == gathered
    assert sent(CUT + "attend evenly") == [*gathered, ("all_to_all", "queries", 2 * queries, 2 * queries)]
    assert sent(CUT + "at blocks[*]: attend in a ring") == [
        ("all_to_all", "queries", 2 * queries + keys, 2 * queries + wide),
        ("permute", "keys", 3 * keys, 3 * keys + 4 * wide),
    ]


def test_a_ring_keeps_a_part_of_keys_and_values() -> None:
    part = 8 * 4 * 4 * 8 * 2
    gathered, even, ring = (
        saved_activations(planned(text(CUT + rule), 4, "s")).of(0) for rule in ("", "attend evenly", "attend in a ring")
    )
    layers = 2
    assert (even - gathered, gathered - ring) == (0, layers * 3 * part)


def test_the_more_specific_rule_decides() -> None:
    way = "attend evenly\n  at blocks[0]: attend in a ring"
    assert [c[0] for c in sent(CUT + way)] == ["all_to_all", "permute"]


CROSSED = """\
use std.nn: Linear

dim batch = 4, src = 8, tgt = 4, d = 8

model Crossed {
  layer one = Linear(d, d)

  forward(x: [batch, src, d], y: [batch, tgt, d]) -> [batch, tgt, d] {
    keys = attention(one(x), x, x)
    return attention(one(y), keys, keys)
  }
}

strategy s {
  mesh cp = 2
  split src over cp
  attend in a ring
}

train {
  model = Crossed()
  data = random(x: [batch, src, d], y: [batch, tgt, d], label: [batch, tgt, d], batches = 1)
  loss = mse_loss(model(x, y), label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def test_keys_go_round_where_queries_are_cut_as_they_are() -> None:
    plan = planned(CROSSED, 2, "s")
    first, second = (op for op in plan.ops if plan.graph.ops[op.op].operator == "attention")
    assert [use.layout.state("cp") for use in first.operands] == ["S", "S", "S"]
    assert [axes for _, axes, _, _ in first.inside] == [("cp",)]
    assert not second.inside and not any(use.layout.dims[-2] for use in second.operands)


@pytest.mark.parametrize("rules, seq, message", [
    ("split batch over cp\n  attend evenly", 16, "SH308: no causal attention that the rule covers has its"),
    (CUT + "attend around", 16, "SH321: `attend around` is no way to attend"),
    (CUT + "at blocks[*].mlp: attend in a ring", 16, "SH308: the rule covers no `attention`"),
    (CUT + "attend evenly\n  attend in a ring", 16, "SH309: two rules say differently how `blocks[0].attention.mixed`"),
    (CUT + "attend evenly", 12,
     "SH304: `attend evenly` gives each of 4 ranks two chunks of `seq`, and 12 is no multiple of 8"),
    ("split seq over cp sizes (2, 6, 4, 4)\n  attend in a ring", 16,
     "SH304: `attend in a ring` gives all ranks as much of `seq`, and its parts are 2, 6, 4, 4"),
])  # fmt: skip
def test_rules_that_are_wrong(rules: str, seq: int, message: str) -> None:
    plan, sink = sources.tried(text(rules, seq=seq), 4, "s")
    assert plan is None
    assert any(f"{d.code}: {d.message}".startswith(message) for d in sink.found), [str(d.message) for d in sink.found]


def test_an_axis_of_one_rank_is_no_mistake() -> None:
    plan = planned(text("split seq over cp\n  split batch over dp\n  attend evenly", "dp = 4, cp = 1"), 4, "s")
    assert not any(op.inside for op in plan.ops)
