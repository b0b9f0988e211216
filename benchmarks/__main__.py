"""Runs benchmarks one after another and ends with a table of their ratios.

python -m benchmarks              all of them
python -m benchmarks NAME ...     some
python -m benchmarks --list       their claims
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NAMES = (
    "check_process", "large_model", "depth", "quickstart_process", "tensor_parallel", "dtensor_dispatch", "dtensor",
    "pipeline", "data_parallel", "gpt2", "zero_3", "one_rank", "compiled", "tables", "exchange", "mindspore_job",
)  # fmt: skip
VERDICT = re.compile(r"^(.+): ratio (\S+) \(limit (\S+), spread (\S+)\): (held|MISSED)$")


def claim(name: str) -> str:
    """The first line of a script's docstring."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or ""
    return text.splitlines()[0].removeprefix("Claim: ")


def run(name: str) -> list[tuple[str, ...]]:
    """Runs a script and shows what it prints; its verdicts, or that it has none, as rows of the table."""
    print(f"\n{name}: {claim(name)}", flush=True)
    start, rows = time.monotonic(), []
    # Threads that wait for work sleep, on both sides alike: spinning they would take time from whatever else runs.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(HERE / f"{name}.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as script:
        assert script.stdout is not None
        for line in script.stdout:
            print(f"  {line}", end="", flush=True)
            found = VERDICT.match(line.rstrip())
            rows += [found.groups()] if found else []
            rows += [(name, "", "", "", "skipped")] if line.startswith("skipped") else []
    print(f"  {time.monotonic() - start:.0f} s")
    return rows if rows else [(name, "", "", "", "FAILED")]


def show(rows: list[tuple[str, ...]]) -> None:
    table = [("", "ratio", "limit", "spread", ""), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    print()
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> int:
    chosen = sys.argv[1:] or list(NAMES)
    if chosen == ["--list"]:
        print("\n".join(f"{name:18} {claim(name)}" for name in NAMES))
        return 0
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        print(f"no benchmark `{unknown[0]}`; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    rows = [row for name in chosen for row in run(name)]
    show(rows)
    return 0 if all(row[4] in ("held", "skipped") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
