"""Activations that a plan counts for one block, against Megatron's formula, term by term.

Korthikanti et al., 2022 ("Reducing Activation Recomputation in Large Transformer Models"), equations 1 to 6: a layer
keeps s b h (34 + 5 a s / h) bytes in 16 bits; s b h (10 + 24 / t + 5 a s / h t) over t ranks of tensor parallelism;
s b h / t (34 + 5 a s / h) with the sequence split too; 2 s b h where the layer is computed again. Here numbers have 4
bytes, masks 1, and ffn is 4 h. All below is in bytes, in units of s b h. That a run keeps what the plan says, to the
byte, is in tests/end_to_end/test_alive.py.
"""

from __future__ import annotations

import pytest

from shardlang.folds.memory import memory
from tests.emit.sources import planned

BATCH, SEQ, D, HEADS = 4, 16, 64, 4
UNIT = BATCH * SEQ * D
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
# Megatron's 34: 16 numbers of 2 bytes and two masks of dropout of 1 byte.
NUMBERS = {
    "what the two norms read": 2, "what q, k and v read": 1, "queries, keys, values": 3, "what `out` reads": 1,
    "what `up` reads": 1, "what the activation reads": 4, "what `down` reads": 4,
}  # fmt: skip
MASKS = 2
RELU = 4  # its backward reads what it gives, which `down` reads too: one tensor where gelu has two
# Megatron leaves out what has one number a place: here the mean and deviation of each norm, and of each head the
# logarithm of its scores' sum, which stands for the scores: no 5 a s / h.
NORMS, HEAD = 2 * 2 / D, HEADS / D
TENSOR = "split heads, ffn over tp"
AGAIN = "at encoder.blocks[*]: recompute"


def per_block(rules: str, ranks: int, text: str = TEXT) -> float:
    """Bytes that one block more adds, in units."""
    few, many = (
        memory(planned(text.replace("RULES", rules).replace("LAYERS", str(n)), ranks, "s")).activations for n in (2, 4)
    )
    return (many - few) / 2 / UNIT


def test_on_one_rank() -> None:
    assert 2 * sum(NUMBERS.values()) + MASKS == 34
    assert per_block("mesh dp = 1", 1) == 4 * (sum(NUMBERS.values()) - RELU + NORMS + HEAD) + MASKS


GELU = TEXT.replace("std.transformer: Encoder", "std.gpt2: Block").replace(
    "Encoder(LAYERS, d, heads, ffn, dropout = 0.1)", "Block(d, heads, ffn, 0.1, 1e-5, 0.02)"
)
GELU = GELU.replace("layer encoder", "layer blocks[LAYERS]").replace("encoder(x)", "x |> blocks")


def test_with_gelu_all_of_the_terms_are_there() -> None:
    assert per_block("mesh dp = 1", 1, GELU) == 4 * (sum(NUMBERS.values()) + NORMS + HEAD) + MASKS


STREAM = ("  optimizer = sgd", "  precision = bf16(stream = bf16)\n  optimizer = sgd")


def test_a_stream_in_bf16_is_megatrons_34() -> None:
    """All numbers have 2 bytes, but for one a place: in f32, as Megatron's statistics are."""
    assert per_block("mesh dp = 1", 1, GELU.replace(*STREAM)) == 34 + 4 * (NORMS + HEAD)


@pytest.mark.parametrize("t", [2, 4])
def test_tensor_and_sequence_parallel(t: int) -> None:
    """1 / t of all but what q, k, v and `up` read: that is gathered, and kept so, where Megatron keeps its part and
    gathers it a second time. So does `recompute gathers`: then all terms are Megatron's over t.
    """
    gathered = NUMBERS["what q, k and v read"] + NUMBERS["what `up` reads"]
    split = 4 * (sum(NUMBERS.values()) - RELU - gathered + NORMS + HEAD) + MASKS
    rules = f"mesh tp = {t}\n  {TENSOR}\n  split seq over (tp?)"
    assert per_block(rules, t) == split / t + 4 * gathered
    assert per_block(f"{rules}\n  {AGAIN} gathers", t) == (split + 4 * gathered) / t


@pytest.mark.parametrize("t", [2, 4])
def test_tensor_parallel(t: int) -> None:
    """Norms, masks and sums are not left whole, as Megatron's are (its 10): propagation splits them too, over d or
    seq, for the same bytes sent.
    """
    sequence = per_block(f"mesh tp = {t}\n  {TENSOR}\n  split seq over (tp?)", t)
    theirs = 10 + 24 / t
    assert sequence <= per_block(f"mesh tp = {t}\n  {TENSOR}", t) < 2 * theirs


@pytest.mark.parametrize(("mesh", "ranks", "kept"), [
    ("mesh dp = 1", 1, 1), ("mesh tp = 2\n  split heads, ffn over tp\n  split seq over (tp?)", 2, 1 / 2),
    ("mesh tp = 4\n  split heads, ffn over tp\n  split seq over (tp?)", 4, 1 / 4),
])  # fmt: skip
def test_recompute_keeps_what_goes_in(mesh: str, ranks: int, kept: float) -> None:
    """2 s b h bytes of 16 bits: one number an element, over t with the sequence split."""
    assert per_block(f"{mesh}\n  {AGAIN}", ranks) == 4 * kept
