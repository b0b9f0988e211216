"""Real ranks keep between forward and backward what the plan says, to the byte: blocks of all transformers, with and
without `recompute`, under every way to split them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.folds.memory import memory
from shardlang.plan.plan import Plan
from shardlang.step.saved_activations import saved_activations
from shardlang.step.zero3_gathers import orders
from tests.emit.sources import planned
from tests.end_to_end.alive import alive

pytestmark = pytest.mark.slow
TRAIN = """
strategy s {
  RULES
}

train {
  model = MODEL
  data = random(tokens: i64[batch, seq] < 64, label: i64[batch, seq] < 64, batches = 2)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-3)
  precision = PRECISION
  steps = 2
}
"""
HEAD = "use std.LIBRARY\n\ndim batch = 8, seq = 16\n"
GPT2 = (HEAD + TRAIN).replace("LIBRARY", "gpt2: GPT2").replace(
    "MODEL", "GPT2(vocab = 64, d = 64, heads = 4, layers = 2, max_len = 16, dropout = 0.1)"
)  # fmt: skip
LLAMA = (HEAD + TRAIN).replace("LIBRARY", "llama: Llama").replace(
    "MODEL", "Llama(vocab = 64, d = 64, heads = 4, kv_heads = 2, ffn = 128, layers = 2)"
)  # fmt: skip
TRANSLATOR = """\
use std.nn: Linear
use std.transformer: Decoder, Encoder, TokenEmbedding

dim batch = 8, src = 16, tgt = 12, vocab = 64, d = 32, heads = 4, ffn = 64

model Translator {
  layer embed = TokenEmbedding(vocab, d, 16, 0.1)
  layer encoder = Encoder(2, d, heads, ffn, padded = true)
  layer decoder = Decoder(2, d, heads, ffn, pre_norm = false, padded = true)
  layer head = Linear(d, vocab)

  forward(source: i64[batch, src], target: i64[batch, tgt]) -> [batch, tgt, vocab] {
    keep = source != 0
    memory = embed(source) |> encoder(keep)
    return embed(target) |> decoder(memory, keep) |> head
  }
}

strategy s {
  RULES
}

train {
  model = Translator()
  data = random(source: i64[batch, src] < 64, target: i64[batch, tgt] < 64, label: i64[batch, tgt] < 64, batches = 2)
  loss = cross_entropy(model(source, target), label, ignore_index = 0, label_smoothing = 0.1)
  optimizer = adamw(lr = 1e-3)
  precision = PRECISION
  steps = 2
}
"""
ONE = "mesh dp = 1"
DATA = "mesh dp = 2\n  split batch over dp"
TENSOR = "mesh tp = 2\n  split heads, ffn, vocab over tp"
GROUPED = "mesh tp = 2\n  split heads, kv_heads, ffn, vocab over tp"
CONTEXT = "mesh cp = 2\n  split seq over cp"
SEQUENCE = "\n  split seq over (tp?)"
AGAIN = "\n  at blocks[*]: recompute"
GATHERS, CHEAP = f"{AGAIN} gathers", f"{AGAIN} all but products"
CASES = {
    "gpt2": (GPT2, ONE, 1),
    "gpt2-recompute": (GPT2, ONE + AGAIN, 1),
    "gpt2-tp": (GPT2, TENSOR, 2),
    "gpt2-tp-sequence": (GPT2, TENSOR + SEQUENCE, 2),
    "gpt2-tp-sequence-recompute": (GPT2, TENSOR + SEQUENCE + AGAIN, 2),
    "gpt2-tp-sequence-gathers": (GPT2, TENSOR + SEQUENCE + GATHERS, 2),
    "gpt2-tp-sequence-cheap": (GPT2, TENSOR + SEQUENCE + CHEAP, 2),
    "gpt2-values": (GPT2, ONE + "\n  at blocks[*].attention.mixed, blocks[*].wide: recompute", 1),
    "gpt2-cp": (GPT2, CONTEXT, 2),
    "gpt2-zero3": (GPT2, DATA + "\n  zero 3 over dp", 2),
    "gpt2-zero3-keep": (GPT2, DATA + "\n  zero 3 over dp, keep", 2),
    "gpt2-chunks": (GPT2, ONE + "\n  chunks 3", 1),
    "gpt2-tp-chunks": (GPT2, TENSOR + SEQUENCE + "\n  chunks 4", 2),
    "gpt2-microbatches": (GPT2, DATA + "\n  microbatches 2", 2),
    "llama": (LLAMA, ONE, 1),
    "llama-tp-sequence-recompute": (LLAMA, GROUPED + SEQUENCE + AGAIN, 2),
    "llama-cheap-zero3": (LLAMA, DATA + "\n  zero 3 over dp" + CHEAP, 2),
    "llama-cp": (LLAMA, CONTEXT, 2),
    "llama-cp-cheap": (LLAMA, CONTEXT + CHEAP, 2),
    "gpt2-even": (GPT2, CONTEXT + "\n  attend evenly", 2),
    "gpt2-ring-recompute": (GPT2, CONTEXT + "\n  attend in a ring" + AGAIN, 2),
    "llama-ring": (LLAMA, CONTEXT + "\n  attend in a ring", 2),
    "llama-ring-cheap": (LLAMA, CONTEXT + "\n  attend in a ring" + CHEAP, 2),
    "translator": (TRANSLATOR, ONE, 1),
    "translator-cp": (TRANSLATOR, "mesh cp = 2\n  split src, tgt over cp", 2),
    "translator-ring": (TRANSLATOR, "mesh cp = 2\n  split src, tgt over cp\n  attend in a ring", 2),
    "translator-chunks": (TRANSLATOR, TENSOR + "\n  at train.loss: chunks 4", 2),
    "translator-tp": (TRANSLATOR, TENSOR, 2),
    "translator-tp-recompute": (TRANSLATOR, TENSOR + "\n  at encoder.blocks[*], decoder.blocks[*]: recompute", 2),
}
LOW = {
    "gpt2": (GPT2, ONE, 1), "gpt2-zero3": (GPT2, DATA + "\n  zero 3 over dp", 2), "llama": (LLAMA, ONE, 1),
    "llama-zero3-keep": (LLAMA, DATA + "\n  zero 3 over dp, keep" + CHEAP, 2),
    "llama-recompute": (LLAMA, ONE + AGAIN, 1), "llama-chunks": (LLAMA, ONE + "\n  chunks 2", 1),
    "llama-tp": (LLAMA, GROUPED, 2),
    "llama-tp-sequence-cheap": (LLAMA, GROUPED + SEQUENCE + CHEAP, 2), "llama-cp": (LLAMA, CONTEXT, 2),
    "llama-ring": (LLAMA, CONTEXT + "\n  attend in a ring", 2),
}  # fmt: skip


def kept(text: str, rules: str, ranks: int, precision: str, folder: Path) -> tuple[int, int]:
    """Bytes that the plan says, and what the rank that keeps most of it does."""
    program = text.replace("RULES", rules).replace("PRECISION", precision)
    found = alive(program, ranks, folder / "run", "s")
    plan = planned(program, ranks, "s")
    gathered = memory(plan).copies if any(param.keep for param in plan.params.values()) else fleeting(plan)
    return saved_activations(plan).of(0) + gathered, max(sum(size for _, size in rank) for rank in found)


def fleeting(plan: Plan) -> int:
    """Bytes of gathered parameters between forward and backward under ZeRO 3: what forward gathered last, and what is
    on its way for backward, which gloo is given a copy of for each rank.
    """
    gathers = orders(plan)
    if not gathers.cut:
        return 0
    last = gathers.passes["F", 0][-1].params
    coming = next(unit.params for unit in gathers.passes["B", 0] if not unit.params <= last)
    return gathers.bytes_of(last) + 2 * gathers.bytes_of(coming)


@pytest.mark.parametrize("case", CASES)
def test_in_f32(case: str, tmp_path: Path) -> None:
    said, there = kept(*CASES[case], "f32", tmp_path)
    assert there == said


@pytest.mark.parametrize("case", LOW)
def test_in_bf16(case: str, tmp_path: Path) -> None:
    said, there = kept(*LOW[case], "bf16", tmp_path)
    assert there == said


@pytest.mark.parametrize("again", ["", AGAIN])
def test_stages(again: str, tmp_path: Path) -> None:
    """Under gpipe all microbatches are kept before the first backward; besides, a rank waits for the gradients of what
    it has sent, and holds the step's loss once.
    """
    lines = "\n  stages over pp {\n    0: embed, blocks[0]\n    1: blocks[1], norm\n  }"
    rules = f'mesh pp = 2{lines}\n  microbatches 2\n  schedule "gpipe"{again}'
    program = GPT2.replace("RULES", rules).replace("PRECISION", "f32")
    said, sent, loss = saved_activations(planned(program, 2, "s")), 4 * 16 * 64 * 4, 4
    found = [sum(size for _, size in rank) for rank in alive(program, 2, tmp_path / "run", "s")]
    assert found == [2 * said.of(0) + 2 * sent, 2 * said.of(1) + loss]
