"""Claim: GPT-2 of 10 million parameters under `zero 3` takes at most the time of FSDP2's `fully_shard` by hand.

A training loop on data on hand; both sides begin with the same weights and must come to the same losses.

    python benchmarks/zero_3.py [turns]
"""

from __future__ import annotations

import sys

from by_hand.gpt2 import sharded
from gpt2 import held

if __name__ == "__main__":
    sys.exit(0 if held("zero_3", sharded, "fully_shard") else 1)
