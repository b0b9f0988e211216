"""What ZeRO 3 gathers together and in which order, as the plan says and the emitted program writes it down."""

from __future__ import annotations

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import emit_plan
from shardlang.emit.gathers import order_arguments
from shardlang.folds.traffic import sent
from shardlang.step.zero3_gathers import orders
from tests.emit.sources import planned

TRAIN = """
strategy s {
  mesh RANKS
  split batch over dp
  zero 3 over dp
  RULES
}

train {
  model = MODEL
  data = random(DATA, batches = 2)
  loss = cross_entropy(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""
GPT2 = ("use std.gpt2: GPT2\n\ndim batch = 8, seq = 16\n" + TRAIN).replace(
    "DATA", "x: i64[batch, seq] < 60, label: i64[batch, seq] < 60"
).replace("MODEL", "GPT2(vocab = 60, d = 64, heads = 4, layers = 4, max_len = 16)")  # fmt: skip
CHAIN = """\
use std.nn: Linear

dim batch = 8, a = 16, b = 4

model Pair(inputs: dim, width: dim, outputs: dim) {
  layer up = Linear(inputs, width)
  layer down = Linear(width, outputs)

  forward(x: [batch, inputs]) -> [batch, outputs] {
    return x |> up |> down
  }
}

model Net {
  MEMBERS

  forward(x: [batch, a]) -> [batch, a] {
    return BODY
  }
}
""" + TRAIN.replace("MODEL", "Net()").replace("DATA", "x: [batch, a], label: i64[batch] < 16")  # fmt: skip


def said(text: str, rules: str = "", ranks: int = 2, stage: int = 0) -> str:
    """The argument of the emitted program."""
    mesh = "dp = 2" if ranks == 2 else "pp = 2, dp = 2"
    plan = planned(text.replace("RANKS", mesh).replace("RULES", rules), ranks, "s")
    return " ".join("".join(order_arguments(plan, stage, 0)).split()).replace("( ", "(").replace(", )", ")")


def chain(members: str, body: str) -> str:
    return CHAIN.replace("MEMBERS", members).replace("BODY", body)


def test_layers_of_an_array_one_by_one_and_a_shared_table_at_each_of_its_uses() -> None:
    assert said(GPT2) == (
        'gathers=rt.Order(forward=("embed", "blocks[0..4]", ("embed.weight", "norm")), '
        'backward=("blocks[0..4]", ("embed.weight", "norm")))'
    )


def test_layers_outside_of_arrays_come_together_up_to_the_largest() -> None:
    text = chain("layer p = Pair(a, 8, 8)\n  layer q = Pair(8, b, a)", "x |> p |> q")
    # p.up has 136 elements, p.down 72, q.up 36, q.down 80; backward does not read the first.
    assert said(text) == (
        'gathers=rt.Order(forward=("p.up", ("p.down", "q")), backward=(("p.down.weight", "q.up.weight", '
        '"q.down.weight"),))'
    )  # fmt: skip


@pytest.mark.parametrize(
    ("members", "body", "forward"),
    [
        ("layer p[3] = Pair(a, b, a)", "x |> p", '"p[0..3]"'),
        # Layers of an outer array that are not alike come in parts of their own, if they have such.
        ("layer p = Pairs()", "p(x)", '"p.own[0..2]"'),
    ],
)
def test_arrays(members: str, body: str, forward: str) -> None:
    pairs = "model Pairs {\n  layer own[2] = Pair(a, b, a)\n\n  forward(x: [batch, a]) -> [batch, a] {\n" \
            "    return x |> own\n  }\n}\n\n"  # fmt: skip
    text = chain(members, body).replace("model Net", f"{pairs if 'Pairs' in members else ''}model Net")
    assert f"forward=({forward},)" in said(text)


def test_a_layer_with_others_in_it_is_named_by_what_it_has_itself() -> None:
    """The array has one layer, and so no two that are alike; those in it are, and come by themselves."""
    outer = "model Outer {\n  param scale: [a] = ones()\n  layer own[2] = Pair(a, b, a)\n\n" \
            "  forward(x: [batch, a]) -> [batch, a] {\n    return x * scale |> own\n  }\n}\n\n"  # fmt: skip
    text = chain("layer one[1] = Outer()", "x |> one").replace("model Net", f"{outer}model Net")
    assert said(text) == (
        'gathers=rt.Order(forward=("one[0].scale", "one[0].own[0..2]"), backward=("one[0].own[0..2]",))'
    )
    sink = Sink()
    assert emit_plan(planned(text.replace("RANKS", "dp = 2").replace("RULES", ""), 2), sink), sink.found


def test_parts_of_a_backward_come_in_their_own_orders() -> None:
    """With one that sends no gradient back, all is in the second part; with what is computed again, in the first."""
    stages = 'stages over pp balanced\n  microbatches 4\n  schedule "zero_bubble"'
    first, last = (said(GPT2, stages, 4, stage) for stage in (0, 1))
    assert first == 'gathers=rt.Order(forward=("embed", "blocks[0..2]"), weights=("blocks[0..2]",))'
    assert 'inputs=("blocks[2..4]", ("embed.weight", "norm")), weights=("embed.weight", "blocks[2..4]", "norm")' in last
    again = said(GPT2, stages + "\n  at blocks[*]: recompute", 4, 1)
    assert "inputs=" in again
    assert "weights=" not in again


def test_at_most_two_are_there() -> None:
    plan = planned(GPT2.replace("RANKS", "dp = 2").replace("RULES", "microbatches 2"), 2, "s")
    found = orders(plan)
    block = next(unit for unit in found.passes["F", 0] if unit.layer)
    step = found.steps[(0,)]
    assert step.most == 2 * found.bytes_of(block.params)
    # Backward ends with the first layer, and forward begins with the tables.
    assert {step.forward[value] for value in block.params} == {2}
    last = found.passes["B", 0][0].params
    assert {step.backward[value] for value in last} == {0}
    again = sum(each.backward_bytes for each in sent(plan) if each.what == "parameters")
    assert again == 2 * 4 * found.bytes_of(block.params) // 2  # of each microbatch and layer one half
