"""Activations that a plan counts for one block, against Megatron's formula, term by term.

Korthikanti et al., 2022 ("Reducing Activation Recomputation in Large Transformer Models"), equations 1 to 6: a layer
keeps s b h (34 + 5 a s / h) bytes in 16 bits; s b h (10 + 24 / t + 5 a s / h t) over t ranks of tensor parallelism;
s b h / t (34 + 5 a s / h) with the sequence split too; 2 s b h where the layer is computed again. Here attention is one
operator, whose scores are never kept (no 5 a s / h), numbers have 4 bytes, and ffn is 4 h. All below is in elements, in
units of s b h.
"""

from __future__ import annotations

import pytest

from shardlang.plan.memory import memory
from tests.emit.sources import planned

UNIT = 4 * 16 * 64 * 4
TEXT = """\
use std.transformer: Encoder

dim batch = 4, seq = 16, d = 64, heads = 4, ffn = 256

model Net {
  layer encoder = Encoder(LAYERS, d, heads, ffn, dropout = 0.1)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    return encoder(x)
  }
}

strategy s {
  RULES
}

train {
  model = Net()
  data = random(x: [batch, seq, d], batches = 1)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""
# Megatron's 34 in 16 bits is 16 numbers of 2 bytes and two masks of dropout of 1 byte.
MEGATRON = {
    "what the two norms read": 2, "what q, k and v read": 1, "queries, keys, values": 3, "what `out` reads": 1,
    "what `up` reads": 1, "what relu reads": 4, "what `down` reads": 4,
}  # fmt: skip
# The plan counts every result of an operator that has a gradient. These backward does not need, or they are views.
RESULTS = {
    "q, k and v before and after the bias, heads together": 6, "what attention gives, heads apart": 1,
    "`up` before the bias": 4, "`out` and `down` after the bias": 2, "the two that have dropped out": 2,
}  # fmt: skip
PRODUCTS = 2  # `out` and `down` before the bias: sums pending over tensor parallelism, so never split
GATHERED = 2  # what q, k, v and `up` read, whole again: Megatron gathers it once more in backward
SCATTERED = 2  # the two sums, reduced to a part
TENSOR = "split heads, ffn over tp"
AGAIN = "at encoder.blocks[*]: recompute"


def per_block(rules: str, ranks: int) -> float:
    """What one block more adds."""
    few, many = (
        memory(planned(TEXT.replace("RULES", rules).replace("LAYERS", str(n)), ranks, "s")).activations for n in (1, 3)
    )
    return (many - few) / 2 / UNIT


def test_on_one_rank() -> None:
    own, more = sum(MEGATRON.values()), sum(RESULTS.values()) + PRODUCTS
    assert 2 * own + 2 == 34
    assert per_block("mesh dp = 1", 1) == own + more == 33


@pytest.mark.parametrize("t", [2, 4])
def test_tensor_and_sequence_parallel(t: int) -> None:
    """Of what is as Megatron's, 16 / t are; the rest is what it keeps no copy of."""
    split = sum(MEGATRON.values()) + sum(RESULTS.values()) + SCATTERED
    found = per_block(f"mesh tp = {t}\n  {TENSOR}\n  split seq over (tp?)", t)
    assert found == split / t + PRODUCTS + GATHERED


@pytest.mark.parametrize("t", [2, 4])
def test_tensor_parallel(t: int) -> None:
    """Norms and sums are not left whole, as in equation 2 (10 bytes): propagation splits them too, over d or seq, for
    the same bytes sent. Biases are added before the sums are reduced, so that these results are whole as well.
    """
    whole = PRODUCTS + GATHERED + 2
    split = sum(MEGATRON.values()) + sum(RESULTS.values()) - 2 + SCATTERED
    assert per_block(f"mesh tp = {t}\n  {TENSOR}", t) == split / t + whole
    assert per_block(f"mesh tp = {t}\n  {TENSOR}", t) < 33


@pytest.mark.parametrize(("mesh", "ranks", "kept"), [
    ("mesh dp = 1", 1, 1), ("mesh tp = 2\n  split heads, ffn over tp\n  split seq over (tp?)", 2, 1 / 2),
    ("mesh tp = 4\n  split heads, ffn over tp\n  split seq over (tp?)", 4, 1 / 4),
])  # fmt: skip
def test_recompute_keeps_what_goes_in(mesh: str, ranks: int, kept: float) -> None:
    """2 s b h bytes of 16 bits: one number an element, over t with the sequence split."""
    assert per_block(f"{mesh}\n  {AGAIN}", ranks) == kept
