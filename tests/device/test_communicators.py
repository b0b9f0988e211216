"""The groups of ranks that a plan counts for NCCL's memory are those that real ranks make on a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shardlang.folds.reserved.communicators import MORE, PAIR, PEER, Communicator, communicators
from tests.device.run import trained
from tests.device.test_device import STAGED
from tests.emit.sources import planned
from tests.end_to_end.curves import RunOf
from tests.plan.small_llama import llama

TIED = """
use std.gpt2: GPT2

dim batch = 8, seq = 8

strategy s {
  mesh pp = 2, dp = 2
  split batch over dp
  stages over pp balanced
  microbatches 4
}

train {
  model = GPT2(vocab = 32, d = 16, heads = 2, layers = 2, max_len = 8, dropout = 0.1)
  data = random(tokens: i64[batch, seq] < 32, label: i64[batch, seq] < 32, batches = 2)
  loss = cross_entropy(model(tokens), label)
  optimizer = adamw(lr = 1e-2)
  steps = 1
}
"""
AXES = "mesh dp = 2, tp = 2\n  split batch over dp\n  split heads, kv_heads, ffn, vocab over tp\n  zero 1 over dp"
DEEP = STAGED.replace("pp = 2, dp = 2\n  split batch over dp", "pp = 4").replace("\n  zero 3 over dp", "")
# Coordinate 2 has two stages, neither of which sends to the first coordinate in a step.
LOOPED = DEEP.replace("blocks[4]", "blocks[8]").replace("pp balanced", "pp balanced, virtual = 2")
CASES = {
    "looped": (LOOPED, "both"),
    "staged": (STAGED, "both"),
    "deep": (DEEP, "both"),
    "tied": (TIED, "s"),
    "axes": (llama(AXES), "s"),
}


@pytest.mark.parametrize("case", CASES)
def test_groups_are_those_that_ranks_make(case: str, tmp_path: Path) -> None:
    """Beside that of all ranks. The first rank of a coordinate has the messages to the first of all. Those by which
    weights are brought are there one at a time, and the weights are those of the CPU.
    """
    text, strategy = CASES[case]
    plan = planned(text, 4, strategy)
    mine = communicators(plan)
    run = RunOf(strategy, 4)
    made = [counts["most_groups"] for counts in trained(text, [run], tmp_path)[run].counts]
    each = len(made) // len(mine)
    assert [max(made[at : at + each]) for at in range(0, 4, each)] == [len(here) - 1 for here in mine]
    cpu, device = map(load_file, sorted((tmp_path / run.name).glob("weights-*.safetensors")))
    assert cpu.keys() == device.keys()
    for name, value in cpu.items():
        np.testing.assert_allclose(device[name], value, atol=1e-6)


def test_bytes_of_a_group() -> None:
    """As was seen with NCCL; what the file says comes before it, and peers of other nodes share a buffer."""
    assert Communicator(2).bytes(0, 8) == PAIR < Communicator(8).bytes(0, 8) == MORE == Communicator(64).bytes(0, 8)
    assert Communicator(8, 7).bytes(0, 8) == MORE + 7 * PEER == Communicator(64, 63).bytes(0, 8)
    assert Communicator(8, 7).bytes(10**8, 4) == 10**8 + 3 * PEER


def test_who_sends_to_whom() -> None:
    """One rank has no group. Where queries are exchanged, each sends to each; where all are gathered, it does not."""
    assert communicators(planned(llama("mesh dp = 1"), 1, "s")) == ((),)
    rules = "mesh cp = 4\n  split seq over cp"
    assert communicators(planned(llama(rules), 4, "s")) == ((Communicator(4),),)
    assert communicators(planned(llama(f"{rules}\n  attend evenly"), 4, "s")) == ((Communicator(4, 3),),)
