"""What `recompute` rules cover, and what is told of those that are wrong."""

from __future__ import annotations

import pytest

from shardlang.folds.memory import memory
from shardlang.folds.traffic import conversion_bytes, copied_bytes
from shardlang.step.saved_activations import owners, saved_activations
from tests.emit import sources
from tests.emit.sources import planned
from tests.plan.small_llama import llama

SPLIT = "mesh tp = 2\n  split heads, kv_heads, ffn, vocab over tp\n  split seq over tp?\n  "


def covered(rules: str, precision: str = "f32") -> list[list[str]]:
    """By group the paths of what is computed again."""
    return again(llama(SPLIT + rules, precision), 2)


def again(text: str, ranks: int) -> list[list[str]]:
    plan = planned(text, ranks, "s")
    return [[plan.graph.ops[op].path for op in group.ops] for group in owners(plan).groups]


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


SUMS = """\
dim batch = 4, d = 8, e = 6

model Block() {
  param w: [d, e] = normal(0.1)
  param v: [e, d] = normal(0.1)

  forward(x: [batch, d]) -> [batch, d] {
    wide = tanh(x) * 2.0
    h = (wide @ w) @ v
    half = h * 0.5
    return x + half
  }
}

model Net() {
  layer blocks[2] = Block()

  forward(x: [batch, d]) -> [batch, d] {
    return x |> blocks
  }
}

strategy s {
  mesh dp = 2
  split batch over dp
  at blocks[*]: recompute all but products
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 1)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def test_what_layers_save_may_wait_on_the_host() -> None:
    """All that they save, and the same in all; nothing is computed or sent again."""
    kept, sent = (planned(llama(SPLIT + rule, "f32"), 2, "s") for rule in ("", "at blocks[*]: place saved on host"))
    there, here = memory(kept), memory(sent)
    again = saved_activations(sent).again(0)  # of one layer, on the device in its backward
    assert (there.total, there.host) == (here.total - again, 0) and here.host > 0.5 * here.activations
    assert conversion_bytes(kept) == conversion_bytes(sent)
    assert copied_bytes(kept) == (0, 0) and copied_bytes(sent) == (here.host, here.host)
    assert not any(saved_activations(sent).runs_again(step) for step in sent.steps)


def test_what_no_backward_reads_is_left_out() -> None:
    """The product reads `wide`; `half` goes into a sum alone, and neither it nor the sum saves anything."""
    assert again(SUMS, 2)[1] == ["blocks[1].wide:1", "blocks[1].wide"]


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
        ("at blocks[*]: recompute\n  at blocks[*]: place saved on host", "SH308",
         "two rules say differently what is saved of `blocks[0]` for backward", "keep one"),
        ("at blocks[*].attention.mixed: place saved on host", "SH308", "is a value, and `place saved on", "layer"),
        ("at embed: place saved on host", "SH308", "`embed` covers nothing that is computed", "name layers"),
        ("place saved on host", "SH321", "`place` needs a selector", "at blocks[*]: place saved on host"),
        ("at blocks[*]: place saved on device", "SH321", "`place saved on device` says nothing", "sends it to"),
        ("at blocks[*]: place saved on disk", "SH321", "there is no place `disk`", "`host` and `device`"),
        ("at embed: recompute gathers", "SH308", "`embed` covers nothing that is computed", "name layers"),
        ("at bloks[*], blocks[0]: recompute", "SH308", "`bloks[*]` matches nothing of the model", "`blocks[*]`"),
        ("at bloks[*]: place saved on host", "SH308", "`bloks[*]` matches nothing of the model", "`blocks[*]`"),
    ],
)  # fmt: skip
def test_what_is_told(rules: str, code: str, told: str, help: str) -> None:
    plan, sink = sources.tried(llama(SPLIT + rules), 2, "s")
    assert plan is None
    assert [found.code for found in sink.found] == [code]
    assert told in sink.found[0].message and help in str(sink.found[0].help)
