"""Makes the harness modules of the tests of operators and plans importable."""

import sys
from pathlib import Path

import torch

TESTS = Path(__file__).resolve().parents[1]
for folder in ("ops", "plan", "interpret"):
    sys.path.insert(0, str(TESTS / folder))

# What ranks hold is small: more threads only wait for each other.
torch.set_num_threads(1)
