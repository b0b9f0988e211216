"""ZeRO on real ranks holds what the ZeRO paper says, and what the plan says before.

Rajbhandari et al., 2020, section 3 and figure 1, for Psi parameters in f32 under Adam on N ranks: 4 Psi bytes of
parameters, 4 Psi of gradients, 8 Psi of optimizer state (two moments; the paper's 12 Psi has the f32 copy of parameters
in f16); level 1 divides the optimizer state by N, level 2 the gradients too, level 3 the parameters too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlang.cli.commands.plan import command
from shardlang.folds.memory import memory
from shardlang.step.zero3_gathers import orders
from tests.emit.sources import planned
from tests.end_to_end.kept import PARTS, held

pytestmark = pytest.mark.slow
RANKS = 4
# Sizes of which each rank has whole rows, in multiples of a vector's 16 elements.
TEXT = """\
use std.gpt2: GPT2

dim batch = 16, seq = 8

strategy s {
  mesh dp = 4
  split batch over dp
  microbatches 2
}

train {
  model = GPT2(vocab = 64, d = 64, heads = 4, layers = 2, max_len = 8, dropout = 0.0)
  data = random(tokens: i64[batch, seq] < 64, label: i64[batch, seq] < 64, batches = 1)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-3)
  steps = 2
}
"""
D, FFN = 64, 256
# Tables of tokens and places; per block two norms, four projections of attention, two of the feed forward; a norm.
BLOCK = 2 * 2 * D + 4 * (D * D + D) + (D * FFN + FFN) + (FFN * D + D)
POSITIONS = 8 * D
PSI = 64 * D + POSITIONS + 2 * BLOCK + 2 * D


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_bytes_by_level(level: int, tmp_path: Path) -> None:
    text = TEXT.replace("microbatches 2", f"microbatches 2\n  zero {level} over dp") if level else TEXT
    paper = {
        "parameters": 4 * PSI // (RANKS if level >= 3 else 1),
        "copies": 0,
        "gradients": 4 * PSI // (RANKS if level >= 2 else 1),
        "optimizer": 8 * PSI // (RANKS if level >= 1 else 1),
    }
    assert everywhere(text, tmp_path) == paper


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_bytes_in_bf16(level: int, tmp_path: Path) -> None:
    """Of what is used in bf16, all but the norms and the positions, a rank has a copy of 2 bytes; then levels 1 and 2
    divide the parameters too, and the positions have one. Level 3 has no copies.
    """
    text = TEXT.replace("steps = 2", "steps = 2\n  precision = bf16")
    text = text.replace("microbatches 2", f"microbatches 2\n  zero {level} over dp") if level else text
    norms = (2 * 2 + 1) * 2 * D
    rows = 4 * (PSI - norms) // RANKS
    assert everywhere(text, tmp_path) == {
        "parameters": (4 * PSI, rows + 4 * norms, rows + 4 * norms, 4 * PSI // RANKS)[level],
        "copies": (2 * (PSI - norms - POSITIONS), 2 * (PSI - norms), 2 * (PSI - norms), 0)[level],
        "gradients": 4 * PSI // (RANKS if level >= 2 else 1),
        "optimizer": 8 * PSI // (RANKS if level >= 1 else 1),
    }


def everywhere(text: str, folder: Path) -> dict[str, int]:
    """The bytes of each part by the plan, which are those that it shows, and that each real rank holds."""
    plan = planned(text, RANKS)
    before = memory(plan)
    said = {part: getattr(before, part) for part in PARTS}
    file = folder / "model.shard"
    file.write_text(text)
    done = CliRunner().invoke(command, [str(file), "--ranks", str(RANKS), "--json"])
    shown = json.loads(done.stdout)["per_rank"]
    assert {part: shown[f"{part}_bytes"] for part in PARTS} == said
    # What level 3 gathers is there within a step alone.
    said["copies"] -= orders(plan).steps[(0,)].most
    assert held(text, RANKS, folder / "run") == [said] * RANKS
    return said
