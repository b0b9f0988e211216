"""What crosses the borders of stages and of layers that are computed again, under `precision = bf16`: each value once,
in the fewest bytes, and the numbers of one device to the bit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from shardlang.folds.traffic import sent, stages_by_coordinate
from shardlang.plan.plan import Plan
from shardlang.step.saved_activations import saved_activations
from tests.emit.sources import main_file, planned
from tests.end_to_end.wired import wired

# Norms stand after the sums, so that blocks give f32: as such their sums read it, in bf16 their products. Of the
# encoder all blocks of the decoder read the bf16 form, and that alone.
TEXT = """\
use std.transformer: Decoder, Encoder
use std.nn: Linear

dim batch = 8, src = 4, tgt = 6, d = 8, vocab = 12

model Translator(layers: int = 2) {
  layer encoder = Encoder(layers, d, 2, 16, 0.1, false)
  layer decoder = Decoder(layers, d, 2, 16, 0.1, false)
  layer head = Linear(d, vocab, bias = false)

  forward(x: [batch, src, d], y: [batch, tgt, d]) -> [batch, tgt, vocab] {
    memory = encoder(x)
    return head(decoder(y, memory))
  }
}

strategy alone {
  mesh dp = auto
  split batch over dp
  microbatches 4
}

strategy staged {
  mesh pp = 4
  stages over pp {
    0: encoder.blocks[0]
    1: encoder.blocks[1]
    2: decoder.blocks[0]
    3: decoder.blocks[1], head
  }
  microbatches 4
}

strategy recomputed {
  mesh dp = auto
  split batch over dp
  microbatches 4
  at encoder.blocks[*], decoder.blocks[*]: recompute
}

train {
  model = Translator()
  data = random(x: [batch, src, d], y: [batch, tgt, d], label: i64[batch, tgt] < 12, batches = 2)
  logits = model(x, y)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-2)
  precision = bf16
  steps = 3
}
"""
SOURCE, TARGET = 8 * 4 * 8, 8 * 6 * 8  # elements of a batch


def handed(plan: Plan) -> list[tuple[str, str]]:
    """What is handed on, and in which type."""
    values = plan.graph.values
    ops = [op for op in plan.graph.ops if op.operator == "transfer"]
    return [(op.path, values[op.results[0]].type.dtype) for op in ops]


def messages(plan: Plan) -> list[int]:
    """Bytes that each coordinate sends to others in a step."""
    pipeline = plan.pipeline
    assert pipeline is not None
    mine = [s for s in sent(plan) if s.axes == (pipeline.axis,)]
    return [
        sum(s.forward_bytes + s.backward_bytes for s in mine if s.stages <= stages)
        for stages in map(frozenset, stages_by_coordinate(plan))
    ]


def test_each_value_crosses_once_and_the_gradients_are_those_of_one_device(tmp_path: Path) -> None:
    plan = planned(TEXT, 4, "staged")
    assert handed(plan) == [
        ("encoder.blocks[0].mlp_norm.return@1", "f32"),
        ("encoder.blocks[1].mlp_norm.return:bf16@2", "bf16"),
        ("decoder.blocks[0].mlp_norm.return@3", "f32"),
        ("encoder.blocks[1].mlp_norm.return:bf16@3", "bf16"),
    ]
    stream, memory = 4 * TARGET, 2 * SOURCE
    expected = [4 * SOURCE, 4 * SOURCE + memory, memory + stream + memory, stream + memory]
    assert messages(plan) == expected
    counted = wired(TEXT, 4, tmp_path / "staged", "staged")
    assert [rank["messages"] for rank in counted] == expected
    wired(TEXT, 1, tmp_path / "alone", "alone")
    wired(TEXT, 1, tmp_path / "recomputed", "recomputed")
    alone = load_file(tmp_path / "alone" / "weights.safetensors")
    for other in ("staged", "recomputed"):
        weights = load_file(tmp_path / other / "weights.safetensors")
        assert weights.keys() == alone.keys()
        assert [path for path in alone if not weights[path].equal(alone[path])] == [], other


def test_a_layer_that_is_computed_again_keeps_its_input_once() -> None:
    plan = planned(TEXT, 1, "recomputed")
    kept = {path: size for path, size, stays in saved_activations(plan).tensors(0) if stays}
    for block, size in (("encoder.blocks[0]", SOURCE), ("decoder.blocks[0]", TARGET)):
        assert kept[f"{block}.mlp_norm.return"] == 4 * size // 4  # a quarter of the batch at a time
        assert f"{block}.mlp_norm.return:bf16" not in kept
    # All of the decoder reads the bf16 form: f32 is not kept.
    assert kept["encoder.blocks[1].mlp_norm.return:bf16"] == 2 * SOURCE // 4
    assert "encoder.blocks[1].mlp_norm.return" not in kept
    text = main_file(TEXT, 1, "recomputed")
    assert re.findall(r"rt\.recompute\(\s*(\w+)", text) == [
        "encoder_block", "encoder_block_2", "decoder_block", "decoder_block_2",
    ]  # whole blocks, and no region beside them  # fmt: skip


SKIP = """\
use std.nn: Linear

dim batch = 4, d = 8

# Gives f32, reads x in bf16.
model Wide() {
  layer linear = Linear(d, d)
  forward(x: [batch, d]) -> [batch, d] {
    return exp(linear(x))
  }
}

# Reads x in f32, and as a product does, in bf16.
model Both() {
  layer linear = Linear(d, d)
  forward(x: [batch, d]) -> [batch, d] {
    return linear(x) + exp(x)
  }
}

model View() {
  layer linear = Linear(d, d)
  forward(x: [batch, d], turned: [d, batch]) -> [batch, d] {
    return linear(x) + rearrange(turned -> [batch, d])
  }
}

model Net {
  LAYERS

  forward(x: [batch, d]) -> [batch, d] {
    BODY
  }
}

strategy s {
  mesh pp = 4
  stages over pp {
    0: first
    1: second
    2: third
    3: last
  }
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 2)
  out = model(x)
  loss = mse_loss(out, y)
  precision = bf16
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""
# The layers of the stages, how they are called, and what is handed on.
MODELS = {
    # f32 as long as someone reads it, then the bf16 form alone.
    "wide, then narrow": (
        ("Wide()", "Both()", "Linear(d, d)", "Linear(d, d)"),
        ("h = first(x)", "a = second(h)", "b = third(a)", "return last(h) + b"),
        ["first.return@1 f32", "second.return:bf16@2 bf16", "first.return:bf16@2 bf16", "first.return:bf16@3 bf16",
         "third.return@3 bf16"],
    ),
    # f32 for a stage behind one that reads bf16 alone.
    "narrow, then wide": (
        ("Wide()", "Linear(d, d)", "Both()", "Linear(d, d)"),
        ("h = first(x)", "a = second(h)", "b = third(h)", "return last(b) + a"),
        ["first.return@1 f32", "first.return@2 f32", "third.return:bf16@3 bf16", "second.return@2 bf16",
         "second.return@3 bf16"],
    ),
    # Nobody behind the border reads f32.
    "narrow": (
        ("Wide()", "Linear(d, d)", "Wide()", "Both()"),
        ("return x |> first |> second |> third |> last",),
        ["first.return:bf16@1 bf16", "second.return@2 bf16", "third.return@3 f32"],
    ),
    # bf16 is made f32 behind the border.
    "widened": (
        ("Linear(d, d)", "Both()", "Both()", "Both()"),
        ("return x |> first |> second |> third |> last",),
        ["first.return@1 bf16", "second.return@2 f32", "third.return@3 f32"],
    ),
    # A view is taken again of what crosses.
    "a view": (
        ("Linear(d, d)", "View()", "View()", "Linear(d, d)"),
        ("h = first(x)", "t = rearrange(h -> [d, batch])", "return h |> second(t) |> third(t) |> last"),
        ["first.return@1 bf16", "second.return@2 bf16", "t@2 bf16", "third.return@3 bf16"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_the_narrowest_form_that_serves_all_behind_a_border(case: str) -> None:
    models, body, expected = MODELS[case]
    names = ("first", "second", "third", "last")
    layers = (f"layer {name} = {model}" for name, model in zip(names, models, strict=True))
    text = SKIP.replace("LAYERS", "\n  ".join(layers)).replace("BODY", "\n    ".join(body))
    assert [f"{path} {dtype}" for path, dtype in handed(planned(text, 4, "s"))] == expected


# Behind the border a norm alone reads what a product gives, in f32.
NORM = """\
use std.nn: LayerNorm, Linear

dim batch = 8, d = 16

model Net {
  layer up = Linear(d, d, bias = false)
  layer norm = LayerNorm(d)

  forward(x: [batch, d]) -> [batch, d] {
    return norm(up(x))
  }
}

strategy staged {
  mesh pp = 2
  stages over pp {
    0: up
    1: norm
  }
  microbatches 2
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 2)
  loss = mse_loss(model(x), y)
  optimizer = adamw(lr = 1e-2)
  precision = bf16
  steps = 3
}
"""


def test_a_product_that_is_read_in_f32_alone_crosses_in_bf16() -> None:
    plan = planned(NORM, 2, "staged")
    assert [kind for _, kind in handed(plan)] == ["bf16"]
    assert messages(plan) == [2 * 8 * 16, 2 * 8 * 16]
