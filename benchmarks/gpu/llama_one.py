"""Claim: Llama 8B's shapes in bf16, compiled, take at most the time of blocks compiled by hand, at 45 % of the peak.

4 layers, 8192 x 1 tokens, one GPU; each side eager and compiled. By hand: the same net under autocast, each block by
torch.compile.

    python -m benchmarks.gpu.llama_one [--device cpu] [--turns N]
"""

from __future__ import annotations

import sys

from timing import ratios

from benchmarks.gpu.nets import llama_8b
from benchmarks.gpu.pairs import measured
from benchmarks.gpu.place import place
from shardlang.folds.flops import step_flops

MFU = 0.45


def main() -> int:
    here = place()
    net = llama_8b(here)
    found = measured(net, {
        "ours": lambda: net.ours(True), "by hand": lambda: net.by_hand(True),
        "ours eager": lambda: net.ours(False), "by hand eager": lambda: net.by_hand(False),
    })  # fmt: skip
    held = [here.judged("Llama in bf16, compiled / blocks compiled by hand", ratios(found, "ours", "by hand"), 1.0)]
    if here.peak():
        best = net.steps * step_flops(net.plan.graph) / here.peak()
        times = [MFU * seconds / best for seconds in found["ours"].seconds]
        held.append(here.judged(f"Llama in bf16, compiled / steps at {MFU:.0%} of the peak", times, 1.0))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
