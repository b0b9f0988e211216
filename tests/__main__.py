"""The one test command, `python -m tests`: lint, types, layers of imports, then all tests. Arguments go to pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def main() -> int:
    """Runs every step, also after one has failed; 0 where all passed."""
    steps = [
        [str(BIN / "ruff"), "check", "."],
        [str(BIN / "mypy")],
        [str(BIN / "lint-imports"), "--no-cache"],
        [sys.executable, "-m", "pytest", "-n", "2", *sys.argv[1:]],
    ]
    failed = []
    for step in steps:
        name = " ".join([Path(step[0]).name, *step[1:]])
        print(f"== {name}", flush=True)
        if subprocess.run(step, cwd=ROOT).returncode != 0:
            failed.append(name)
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
