"""Claim: a step of the emitted tensor-parallel MLP takes at most 0.8 times the same by DTensor's `parallelize_module`.

As tensor_parallel.py, with the net split by DTensor.

    python benchmarks/dtensor.py [turns]
"""

from __future__ import annotations

import sys

from by_hand.mlp import by_dtensor
from tensor_parallel import held

if __name__ == "__main__":
    sys.exit(0 if held(by_dtensor, "parallelize_module", 0.8) else 1)
