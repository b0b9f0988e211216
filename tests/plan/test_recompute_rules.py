"""What `recompute` rules cover, and what is told of those that are wrong."""

from __future__ import annotations

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.source import Source
from tests.emit.sources import planned

TEXT = """\
use std.llama: Llama

dim batch = 8, seq = 16

strategy s {
  mesh tp = 2
  split heads, kv_heads, ffn, vocab over tp
  split seq over tp?
  RULES
}

train {
  model = Llama(vocab = 64, d = 32, heads = 4, kv_heads = 2, ffn = 64, layers = 2)
  data = random(tokens: i64[batch, seq] < 64, label: i64[batch, seq] < 64, batches = 1)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = sgd(lr = 0.1)
  precision = PRECISION
  steps = 1
}
"""


def covered(rules: str, precision: str = "f32") -> list[list[str]]:
    """By group the paths of what is computed again."""
    plan = planned(TEXT.replace("RULES", rules).replace("PRECISION", precision), 2, "s")
    return [[plan.graph.ops[op].path for op in group.ops] for group in plan.recompute]


def test_all_but_products() -> None:
    first, second = covered("at blocks[*]: recompute all but products")
    assert [path.replace("blocks[1]", "blocks[0]") for path in second] == first
    assert first[0] == "blocks[0].attention_norm.return"
    assert not any(name in path for path in first for name in ("q.return", "mixed", "down.return"))
    assert "blocks[0].return" not in first  # the next layer reads it


def test_gathers_alone() -> None:
    assert covered("at blocks[*]: recompute gathers") == [[], []]


def test_what_backward_does_not_read_is_left_out() -> None:
    """In bf16 the last layer gives its sum to a cast alone, and a sum saves nothing."""
    _, second = covered("at blocks[*]: recompute all but products", "bf16")
    assert "blocks[1].a" in second
    assert not any(path.startswith("blocks[1].return") for path in second)


def test_a_value_counts_more_than_its_layer() -> None:
    groups = covered("at blocks[0].attention.mixed: recompute\n  at blocks[*]: recompute")
    assert len(groups) == 3 and ["blocks[0].attention.mixed"] in groups


@pytest.mark.parametrize(
    ("rules", "code", "told", "help"),
    [
        ("at blocks[*]: recompute all but product", "SH321", "`all but product` is nothing", "all but products"),
        ("at blocks[*]: recompute everything", "SH321", "`everything` is nothing", "recompute gathers"),
        ("at blocks[*], blocks[*].mlp: recompute\n  at blocks[*]: recompute gathers", "SH308",
         "two rules say differently what of `blocks[0]` is computed again", "keep one"),
        ("at embed: recompute gathers", "SH308", "`embed` covers nothing that is computed", "name layers"),
    ],
)  # fmt: skip
def test_what_is_told(rules: str, code: str, told: str, help: str) -> None:
    sink = Sink()
    text = TEXT.replace("RULES", rules).replace("PRECISION", "f32")
    program = driver.check_source(Source("net.shard", text), sink, {})
    assert program is not None and driver.plan_program(program, "s", 2, sink) is None
    assert [found.code for found in sink.found] == [code]
    assert told in sink.found[0].message and help in str(sink.found[0].help)
