"""Claim: compiled GPT-2 on 2 GPUs takes at most the time of DistributedDataParallel, and under `zero 3` of fully_shard.

124 million parameters, 16 x 1024 tokens; data-parallel in bf16 as autocast has it, `zero 3` with a stream in bf16 as
FSDP2 has it. Skipped where there is one GPU. This has not run on a GPU yet.

    python -m benchmarks.gpu.several [--device cpu] [--turns N]
"""

from __future__ import annotations

import sys

import torch
from by_hand import gpt2
from timing import ratios
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from benchmarks.gpu.nets import gpt2_124m
from benchmarks.gpu.pairs import measured
from benchmarks.gpu.place import place

RANKS = 2


def sharded(net: gpt2.GPT2) -> nn.Module:
    return gpt2.sharded(net, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def main() -> int:
    here = place(RANKS)
    held = []
    for strategy, precision, spread, other in (
        ("data_parallel", "bf16", gpt2.data_parallel, "DistributedDataParallel"),
        ("zero_3", "bf16(stream = bf16)", sharded, "fully_shard"),
    ):
        net = gpt2_124m(here, precision=precision, strategy=strategy, ranks=RANKS)
        # On the CPU `gpt2_dropout` compiles the same net.
        sides = {
            "ours": lambda net=net: net.ours(here.whole),
            "by hand": lambda net=net, to=spread: net.by_hand(here.whole, to),
        }
        label = f"GPT-2 on {RANKS} GPUs, compiled / {other}"
        held.append(here.judged(label, ratios(measured(net, sides), "ours", "by hand"), 1.0))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
