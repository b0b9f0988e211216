"""A script for each claim about a GPU; `python -m benchmarks.gpu` runs them.

What the scripts beside this folder share (ranks, emitted, timing, by_hand) is imported from there.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
