"""Real ranks send in a step what the plan says, to the byte: sums of gradients and, under ZeRO, parameters gathered in
forward and again in backward, by several layouts of a GPT-2.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.folds.traffic import sent_bytes
from shardlang.step.stages import stages_by_coordinate
from tests.emit.sources import planned
from tests.end_to_end.wired import wired

pytestmark = pytest.mark.slow
RANKS = 4
# Of 60 tokens no rank has as many rows as another under 4 * 2; the table is the head too, and so used twice.
TEXT = """\
use std.gpt2: GPT2

dim batch = 8, seq = 16

strategy s {
  RULES
}

train {
  model = GPT2(vocab = 60, d = 64, heads = 4, layers = 2, max_len = 16, dropout = 0.1)
  data = random(tokens: i64[batch, seq] < 60, label: i64[batch, seq] < 60, batches = 2)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-3)
  precision = PRECISION
  steps = 3
}
"""
LLAMA = (
    TEXT.replace("gpt2: GPT2", "llama: Llama")
    .replace("PRECISION", "f32")
    .replace(
        "GPT2(vocab = 60, d = 64, heads = 4, layers = 2, max_len = 16, dropout = 0.1)",
        "Llama(vocab = 60, d = 64, heads = 4, kv_heads = 2, ffn = 128, layers = 4)",
    )
)
DATA = "mesh dp = 4\n  split batch over dp\n  "
TENSOR = "mesh dp = 2, tp = 2\n  split batch over dp\n  split heads, ffn, vocab over tp\n  split seq over tp?\n  "
CASES = {
    "no zero": (DATA, "f32"),
    "zero 1": (DATA + "zero 1 over dp", "f32"),
    "zero 2, microbatches": (DATA + "zero 2 over dp\n  microbatches 2", "f32"),
    "zero 3": (DATA + "zero 3 over dp", "f32"),
    "zero 3, microbatches": (DATA + "zero 3 over dp\n  microbatches 2", "f32"),
    "zero 3, keep, microbatches, recompute": (
        DATA + "zero 3 over dp, keep\n  microbatches 2\n  at blocks[*]: recompute", "bf16"
    ),
    "zero 3, small buckets": (DATA + "zero 3 over dp\n  bucket gradients 10kB", "f32"),
    "chunks beside tensor parallelism": (TENSOR + "chunks 3", "bf16"),
    "zero 3, recompute": (DATA + "zero 3 over dp\n  at blocks[*]: recompute", "f32"),
    "zero 1, bf16": (DATA + "zero 1 over dp", "bf16"),
    "zero 2, microbatches, bf16": (DATA + "zero 2 over dp\n  microbatches 2", "bf16"),
    "zero 3, bf16": (DATA + "zero 3 over dp", "bf16"),
    "zero 3, all but products": (DATA + "zero 3 over dp\n  at blocks[*]: recompute all but products", "f32"),
    "recompute beside tensor parallelism": (TENSOR + "at blocks[*]: recompute", "f32"),
    "gathers beside tensor parallelism": (TENSOR + "at blocks[*]: recompute gathers", "f32"),
    "all but products beside tensor parallelism": (TENSOR + "at blocks[*]: recompute all but products", "bf16"),
    "zero 1 beside tensor parallelism": (TENSOR + "zero 1 over (dp, tp)", "f32"),
    "zero 3 beside tensor parallelism": (TENSOR + "zero 3 over dp", "f32"),
    "zero 3 beside context parallelism": (
        "mesh dp = 2, cp = 2\n  split batch over dp\n  split seq over cp\n  zero 3 over dp", "f32"
    ),
    "zero 2 beside context parallelism, microbatches": (
        "mesh dp = 2, cp = 2\n  split batch over dp\n  split seq over cp\n  zero 2 over dp\n  microbatches 2", "f32"
    ),
    "zero 3 beside context parallelism, microbatches": (
        "mesh dp = 2, cp = 2\n  split batch over dp\n  split seq over cp\n  zero 3 over dp\n  microbatches 4", "bf16"
    ),
}  # fmt: skip
CONTEXT = "mesh cp = 4\n  split seq over cp\n  "
# By how causal attention divides its chunks, ranks of one group send more or fewer of them.
MOST = {
    "even": (CONTEXT + "attend evenly", "f32"),
    "ring": (CONTEXT + "attend in a ring", "f32"),
    "ring, recompute": (CONTEXT + "attend in a ring\n  at blocks[*]: recompute", "f32"),
    "ring, bf16, microbatches": (CONTEXT + "attend in a ring\n  microbatches 2", "bf16"),
    "ring of two": ("mesh dp = 2, cp = 2\n  split batch over dp\n  split seq over cp\n  attend in a ring", "bf16"),
}


@pytest.mark.parametrize("case", MOST)
def test_the_most_bytes_that_attention_over_a_cut_sequence_sends(case: str, tmp_path: Path) -> None:
    rules, precision = MOST[case]
    text = TEXT.replace("RULES", rules).replace("PRECISION", precision)
    forward, backward = sent_bytes(planned(text, RANKS, "s"))
    found = wired(text, RANKS, tmp_path / "run", "s")
    assert {way: max(rank[way] for rank in found) for way in found[0]} == {"forward": forward, "backward": backward}


@pytest.mark.parametrize("case", CASES)
def test_bytes_of_a_step(case: str, tmp_path: Path) -> None:
    rules, precision = CASES[case]
    text = TEXT.replace("RULES", rules).replace("PRECISION", precision)
    forward, backward = sent_bytes(planned(text, RANKS, "s"))
    assert wired(text, RANKS, tmp_path / "run", "s") == [{"forward": forward, "backward": backward}] * RANKS


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble", "interleaved_1f1b"])
def test_bytes_of_stages(schedule: str, tmp_path: Path) -> None:
    """From action to action, and in the two parts of a backward."""
    virtual = ", virtual = 2" if schedule == "interleaved_1f1b" else ""
    stages = f'stages over pp balanced{virtual}\n  microbatches 4\n  schedule "{schedule}"'
    rules = f"mesh pp = 2, dp = 2\n  split batch over dp\n  zero 3 over dp\n  {stages}"
    text = LLAMA.replace("RULES", rules)
    plan = planned(text, RANKS, "s")
    said = [sum(sent_bytes(plan, mine)) for mine in stages_by_coordinate(plan)]
    found = [sum(rank.values()) for rank in wired(text, RANKS, tmp_path / "run", "s")]
    assert found == [said[0]] * 2 + [said[1]] * 2


@pytest.mark.parametrize("zero", ["", "\n  zero 1 over dp", "\n  zero 2 over dp", "\n  zero 3 over dp"])
@pytest.mark.parametrize("axes", ["dp = 2", "dp = 1, tp = 2"])
def test_bytes_of_tied_tables(axes: str, zero: str, tmp_path: Path) -> None:
    """The gradient of a table that two stages use is summed over both, beside the axes of each."""
    rules = f"mesh pp = 2, {axes}\n  split batch over dp\n  stages over pp balanced\n  microbatches 2{zero}"
    rules += "\n  split heads, ffn, vocab over tp" * ("tp" in axes)
    text = TEXT.replace("RULES", rules).replace("PRECISION", "f32")
    plan = planned(text, RANKS, "s")
    said = [sum(sent_bytes(plan, mine)) for mine in stages_by_coordinate(plan)]
    found = [sum(rank.values()) for rank in wired(text, RANKS, tmp_path / "run", "s")]
    assert found == [said[0]] * 2 + [said[1]] * 2


def test_what_is_gathered_once_learns_the_same(tmp_path: Path) -> None:
    """`zero 3 over dp, keep` sends a part of what `zero 3` does, for the same weights bit for bit."""
    sent, weights = [], []
    for keep in ("", ", keep"):
        rules = f"{DATA}zero 3 over dp{keep}\n  microbatches 2"
        text, folder = TEXT.replace("RULES", rules).replace("PRECISION", "f32"), tmp_path / f"run{keep}"
        sent.append(wired(text, RANKS, folder, "s"))
        forward, backward = sent_bytes(planned(text, RANKS, "s"))
        assert sent[-1] == [{"forward": forward, "backward": backward}] * RANKS
        weights.append((folder / "weights.safetensors").read_bytes())
    assert weights[0] == weights[1]
    assert sum(sent[1][0].values()) < sum(sent[0][0].values())
