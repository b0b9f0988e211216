"""A small Llama under a strategy `s`, for tests of its rules."""

from __future__ import annotations

TEXT = """\
use std.llama: Llama

dim batch = 8, seq = SEQ

strategy s {
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


def llama(rules: str, precision: str = "f32", seq: int = 16) -> str:
    """The program with these rules, which begin with the mesh."""
    return TEXT.replace("RULES", rules).replace("PRECISION", precision).replace("SEQ", str(seq))
