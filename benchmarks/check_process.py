"""Claim: as a process, `shardc check quickstart.shard` takes at most 0.3 s and a fifth of `python -c "import torch"`.

python benchmarks/check_process.py [turns]
"""

from __future__ import annotations

import sys
from pathlib import Path

from timing import interleave, process, ratios, verdict

EXAMPLE = Path(__file__).parent.parent / "examples" / "quickstart.shard"


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    shardc = str(Path(sys.executable).with_name("shardc"))
    timings = interleave(
        {
            "check": process([shardc, "check", str(EXAMPLE), "--ranks", "8"]),
            "import torch": process([sys.executable, "-c", "import torch"]),
        },
        turns,
    )
    for name, timing in timings.items():
        print(f"{name:14} {timing}")
    fifth = verdict("shardc check / import torch", ratios(timings, "check", "import torch"), 0.2)
    absolute = verdict("shardc check / 0.3 s", [s / 0.3 for s in timings["check"].seconds], 1.0)
    return 0 if fifth and absolute else 1


if __name__ == "__main__":
    sys.exit(main())
