"""`python -m tests.covered`: the suite under coverage.py, then lines that ran per package of the compiler.

Ends with 1 where a package has less than 90 %. Processes that tests start are counted too; what ranks run (runtime/) is
not, since it is tested on real ranks, whose forks end without a word. Arguments go to pytest; `--only-report` shows the
last run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEAST = 90.0


def main(arguments: list[str]) -> int:
    if "--only-report" not in arguments:
        _coverage("erase")
        failed = _coverage("run", "-m", "pytest", *arguments)
        _coverage("combine", "--quiet")
        if failed:
            print("the tests fail: what they cover says nothing", file=sys.stderr)
            return 1
    found = packages()
    for name, (lines, missed) in sorted(found.items()):
        print(f"{name:12} {lines:6} lines {missed:5} missed {percent(lines, missed):6.1f} %")
    lines, missed = (sum(column) for column in zip(*found.values(), strict=True))
    print(f"{'all':12} {lines:6} lines {missed:5} missed {percent(lines, missed):6.1f} %")
    return int(any(percent(*counts) < LEAST for counts in found.values()))


def _coverage(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT).returncode


def packages() -> dict[str, tuple[int, int]]:
    """Package -> statements and those of them that never ran."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coverage.json"
        _coverage("json", "--quiet", "-o", str(file))
        files = json.loads(file.read_text())["files"]
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, result in files.items():
        below = path.replace("\\", "/").rpartition("shardlang/")[2]
        counts = found[below.partition("/")[0] if "/" in below else "shardlang"]
        counts[0] += result["summary"]["num_statements"]
        counts[1] += result["summary"]["missing_lines"]
    return {name: (lines, missed) for name, (lines, missed) in found.items()}


def percent(lines: int, missed: int) -> float:
    return 100.0 * (lines - missed) / lines if lines else 100.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
