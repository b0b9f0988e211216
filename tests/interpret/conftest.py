"""Makes the harness modules of the tests of operators and plans importable."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for folder in ("ops", "plan", "interpret"):
    sys.path.insert(0, str(TESTS / folder))
