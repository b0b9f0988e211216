"""Memory of published runs: what their papers say they had is enough for the plan."""

from __future__ import annotations

import pytest

from shardlang.folds.memory import by_coordinate
from tests.emit.sources import planned

# The Llama 3 Herd of Models (2024), table 4 and section 3.3: 405B on 16,384 H100 of 80 GB, tp 8, pp 16, dp 128, 16M
# tokens a step in sequences of 8,192, bf16; parameters cut over dp; an interleaved schedule.
LLAMA_405B = """\
use std.llama: Llama

dim batch = 2048, seq = 8192

strategy s {
  mesh pp = 16, dp = 128, tp = 8
  split batch over dp
  split heads, kv_heads, ffn, vocab over tp
  split seq over tp?
  stages over pp balanced, virtual = 2
  microbatches 16
  schedule "interleaved_1f1b"
  zero 1 over dp
  RULES
}

train {
  model = Llama(vocab = 128256, d = 16384, heads = 128, kv_heads = 8, ffn = 53248, layers = 126)
  data = random(tokens: i64[batch, seq] < 128256, label: i64[batch, seq] < 128256, batches = 1, seed = 1)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 3e-4, betas = (0.9, 0.95), weight_decay = 0.1)
  precision = bf16
  clip = 1.0
  steps = 1
}
"""
GB = 10**9


@pytest.mark.parametrize(("rules", "most"), [("at blocks[*]: recompute all but products", 67.3), ("", 194.0)])
def test_llama_405b(rules: str, most: float) -> None:
    """80 GB are enough without any whole block computed again; keeping all of it, they are not."""
    found = by_coordinate(planned(LLAMA_405B.replace("RULES", rules), 16384, "s"))
    largest = max(found, key=lambda kept: kept.total)
    assert largest.total == largest.device == pytest.approx(most * GB, abs=0.1 * GB)
    # Of 3.2 billion parameters: one copy in bf16, gradients in f32, a 128th part of the rest.
    assert largest.gradients == pytest.approx(2 * largest.copies, rel=0.01)
    assert largest.parameters + largest.optimizer < 0.5 * GB


# Korthikanti et al. (2022), table 3: Megatron's 22B on 8 devices, tensor and sequence parallel, 4 sequences of 2,048.
MEGATRON_22B = """\
use std.gpt2: GPT2

dim batch = 4, seq = 2048

strategy s {
  mesh tp = 8
  split heads, ffn, vocab over tp
  split seq over tp?
  at blocks[*]: recompute gathers
  NORMS
}

train {
  model = GPT2(vocab = 51200, d = 6144, heads = 64, layers = LAYERS, max_len = 2048)
  data = random(tokens: i64[batch, seq] < 51200, label: i64[batch, seq] < 51200, batches = 1, seed = 1)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 3e-4)
  precision = PRECISION
  steps = 1
}
"""


NORMS = "at blocks[*].*norm: recompute"


@pytest.mark.parametrize(
    ("precision", "norms", "numbers", "statistics"),
    [("bf16(stream = bf16)", "", 34, 16), ("bf16", NORMS, 34, 0), ("bf16", "", 38, 16)],
)
def test_megatron_22b(precision: str, norms: str, numbers: int, statistics: int) -> None:
    """A layer keeps 34 s b h / t bytes, their formula with the sequence split and scores computed again. Under
    torch.autocast's rules each of the two norms reads an f32 copy of the bf16 stream and keeps it, 2 bytes more an
    element; computed again from the stream, a norm keeps none. Besides, statistics of norms and heads in f32.
    """
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    program = MEGATRON_22B.replace("PRECISION", precision).replace("NORMS", norms)
    few, many = (by_coordinate(planned(program.replace("LAYERS", str(n)), t, "s"))[0] for n in (2, 48))
    assert many.activations - few.activations == 46 * s * b // t * (numbers * h + statistics + 4 * a)
