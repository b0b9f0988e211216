"""What a person has to read does not grow with depth: lines of all emitted files of deep models."""

from __future__ import annotations

from shardlang.sources.files import read_program
from shardlang.sources.source import Source
from tests.emit.sources import emitted_files
from tests.end_to_end.curves import ROOT

LLAMA = """
use std.llama: Llama

dim batch = 2048, seq = 8192

strategy large {
  mesh pp = 16, dp = auto, tp = 8
  split batch over dp
  split heads, kv_heads, ffn, vocab over tp
  split seq over tp?
  stages over pp balanced, virtual = 2
  microbatches pp
  schedule "interleaved_1f1b"
  zero 1 over dp
}

train {
  model = Llama(vocab = 128256, d = 16384, heads = 128, kv_heads = 8, ffn = 53248, layers = 126)
  data = tokens("data/*.bin", batch = batch, seq = seq)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 8e-5, betas = (0.9, 0.95), weight_decay = 0.1)
  lr_schedule = warmup_cosine(warmup = 8000, min = 8e-7)
  precision = bf16
  clip = 1.0
  steps = 1000
}
"""


def lines(source: Source, ranks: int, strategy: str, **overrides: str) -> int:
    """Lines of all files of the emitted program."""
    files = emitted_files(source.text, ranks, strategy, source.name, overrides)
    return sum(text.count("\n") for text in files.values())


def test_a_translator_in_three_dimensions() -> None:
    source = read_program(str(ROOT / "examples" / "transformer.shard"))
    assert lines(source, 8, "three_d") == lines(source, 8, "three_d", **{"model.layers": "48"}) <= 450


def test_a_llama_of_126_layers_on_16384_ranks() -> None:
    assert lines(Source("llama.shard", LLAMA), 16_384, "large") <= 900
