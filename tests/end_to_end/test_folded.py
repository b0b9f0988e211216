"""Layers as functions give the bits that layers written out where they are called give: losses, figures, weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from tests.emit.sources import planned
from tests.generated.worlds import World

TRANSLATOR = """
use std.transformer: Decoder, Encoder
use std.nn: Linear

dim batch = 8, src = 4, tgt = 4, d = 8, heads = 2, ffn = 16, vocab = 12

model Translator(layers: int = 3) {
  layer encoder = Encoder(layers, d, heads, ffn, 0.1)
  layer decoder = Decoder(layers, d, heads, ffn, 0.1)
  layer head = Linear(d, vocab, bias = false)

  forward(x: [batch, src, d], y: [batch, tgt, d]) -> [batch, tgt, vocab] {
    memory = encoder(x)
    return head(decoder(y, memory))
  }
}

strategy three_d {
  mesh pp = 2, dp = 2, mp = 2
  split batch over dp
  split heads, ffn, vocab over mp
  split src, tgt over mp?
  stages over pp {
    0: encoder
    1: decoder, head
  }
  microbatches 2
  schedule "1f1b"
  zero 1 over dp
  at encoder.blocks[*], decoder.blocks[*]: recompute
}

strategy looped {
  mesh pp = 2, dp = auto
  split batch over dp
  stages over pp balanced, virtual = 2
  microbatches 4
  schedule "interleaved_1f1b"
}

strategy sharded {
  mesh dp = auto
  split batch over dp
  zero 3 over dp
  at encoder.blocks[1]: recompute
}

train {
  model = Translator()
  data = random(x: [batch, src, d], y: [batch, tgt, d], label: i64[batch, tgt] < 12, batches = 2)
  eval = random(x: [batch, src, d], y: [batch, tgt, d], label: i64[batch, tgt] < 12, batches = 2)
  logits = model(x, y)
  loss = cross_entropy(logits, label)
  metric accuracy = mean(argmax(logits, over = vocab) == label)
  optimizer = adamw(lr = 1e-2)
  clip = 1.0
  epochs = 2
}
"""


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[int, World]]:
    found = {ranks: World(ranks) for ranks in (1, 2, 4, 8)}
    yield found
    for world in found.values():
        world.close()


def results(world: World, text: str, strategy: str | None, folded: bool, folder: Path) -> tuple[list[object], bytes]:
    """The lines of figures without times, and the saved weights."""
    sink = Sink()
    files = driver.emit_plan(planned(text, world.ranks, strategy), sink, folded)
    assert files is not None, [d.message for d in sink.found]
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    assert any("block(p, x" in content for content in files.values()) == folded
    failed = world.run(folder / "main.py")
    assert not failed, failed
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figures = [{name: value for name, value in line.items() if name != "step_ms"} for line in lines]
    return figures, (folder / "weights.safetensors").read_bytes()


LLAMA = """
use std.llama: Llama

dim batch = 4, seq = 8

strategy staged {
  mesh pp = 2
  stages over pp {
    0: embed, blocks[0..2]
    1: blocks[2..4], norm, head
  }
  microbatches 2
  schedule "1f1b"
}

train {
  model = Llama(vocab = 16, d = 16, heads = 4, kv_heads = 2, ffn = 32, layers = 4)
  data = random(tokens: i64[batch, seq] < 16, label: i64[batch, seq] < 16, batches = 2)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-2)
  precision = bf16
  epochs = 2
}
"""
LOW = TRANSLATOR.replace("  epochs = 2", "  precision = bf16\n  epochs = 2")
CASES = [(TRANSLATOR, "three_d", 8), (TRANSLATOR, "sharded", 2), (TRANSLATOR, None, 1), (LOW, "looped", 4)]


@pytest.mark.parametrize(("text", "strategy", "ranks"), CASES, ids=["three_d", "sharded", "one rank", "bf16"])
def test_the_same_bits(worlds: dict[int, World], tmp_path: Path, text: str, strategy: str | None, ranks: int) -> None:
    one = results(worlds[ranks], text, strategy, True, tmp_path / "folded")
    other = results(worlds[ranks], text, strategy, False, tmp_path / "written_out")
    assert one == other
    assert len(one[0]) == 6


def test_stages_in_bf16_are_sent_a_value_once_and_learn_what_one_rank_learns(
    worlds: dict[int, World], tmp_path: Path
) -> None:
    plan = planned(LLAMA, 2, "staged")
    assert [op.path for op in plan.graph.ops if op.operator == "transfer"] == ["blocks[1].return@1"]
    staged, _ = results(worlds[2], LLAMA, "staged", True, tmp_path / "staged")
    alone, _ = results(worlds[1], LLAMA, None, True, tmp_path / "alone")
    for mine, theirs in zip(staged, alone, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-2)
