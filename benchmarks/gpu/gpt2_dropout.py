"""Claim: GPT-2 with dropout 0.1 in bf16, compiled, takes at most 1.03 times blocks compiled by hand with F.dropout.

124 million parameters, 16 x 1024 tokens, one GPU; each side eager and compiled.

    python -m benchmarks.gpu.gpt2_dropout [--device cpu] [--turns N]
"""

from __future__ import annotations

import sys

from timing import ratios

from benchmarks.gpu.nets import gpt2_124m
from benchmarks.gpu.pairs import measured
from benchmarks.gpu.place import place


def main() -> int:
    here = place()
    net = gpt2_124m(here, dropout=0.1)
    found = measured(net, {
        "ours": lambda: net.ours(True), "by hand": lambda: net.by_hand(True),
        "ours eager": lambda: net.ours(False), "by hand eager": lambda: net.by_hand(False),
    })  # fmt: skip
    label = "GPT-2 with dropout in bf16, compiled / blocks compiled by hand"
    return 0 if here.judged(label, ratios(found, "ours", "by hand"), 1.03) else 1


if __name__ == "__main__":
    sys.exit(main())
