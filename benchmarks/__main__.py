"""Runs benchmarks one after another and ends with a table of their ratios.

python -m benchmarks              all of them
python -m benchmarks NAME ...     some
python -m benchmarks NAME --OPTION ...   one, with options of its own
python -m benchmarks --list       their claims
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
NAMES = (
    "check_process", "large_model", "depth", "growth", "quickstart_process", "record", "tensor_parallel",
    "dtensor_dispatch", "dtensor", "pipeline", "data_parallel", "gpt2", "zero_3", "one_rank", "compiled", "tables",
    "exchange", "checkpoint", "mindspore_job", "published_times", "predicted_times", "keystroke",
)  # fmt: skip
VERDICT = re.compile(r"^(.+): ratio (\S+) \(limit (\S+), spread (\S+)\): (held|MISSED|not judged)$")


@dataclass(frozen=True)
class Suite:
    """The scripts of a folder, in the order in which they run."""

    folder: Path
    names: Sequence[str]

    def claim(self, name: str) -> str:
        """The first line of a script's docstring."""
        text = ast.get_docstring(ast.parse((self.folder / f"{name}.py").read_text())) or ""
        return text.splitlines()[0].removeprefix("Claim: ")

    def run(self, name: str, command: Sequence[str]) -> list[tuple[str, ...]]:
        """Runs a script and shows what it prints; its verdicts, or that it has none, as rows of the table."""
        print(f"\n{name}: {self.claim(name)}", flush=True)
        start, rows = time.monotonic(), []
        # Threads that wait for work sleep, on both sides alike: spinning they would take time from whatever else runs.
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as script:
            assert script.stdout is not None
            for line in script.stdout:
                print(f"  {line}", end="", flush=True)
                found = VERDICT.match(line.rstrip())
                rows += [found.groups()] if found else []
                rows += [(name, "", "", "", "skipped")] if line.startswith("skipped") else []
        print(f"  {time.monotonic() - start:.0f} s")
        ended = script.returncode == 0 or any(row[4] == "MISSED" for row in rows)
        return rows if rows and ended else [*rows, (name, "", "", "", "FAILED")]

    def main(self, chosen: Sequence[str], command: Sequence[str]) -> int:
        """Runs the chosen scripts, or all; command: of a script, with `{name}` where its name goes.
        What follows a first name and begins with an option is the script's."""
        if len(chosen) > 1 and chosen[1].startswith("-"):
            chosen, command = chosen[:1], [*command, *chosen[1:]]
        chosen = chosen or self.names
        if chosen == ["--list"]:
            print("\n".join(f"{name:18} {self.claim(name)}" for name in self.names))
            return 0
        unknown = [name for name in chosen if name not in self.names]
        if unknown:
            print(f"no benchmark `{unknown[0]}`; there are {', '.join(self.names)}", file=sys.stderr)
            return 2
        rows = [row for name in chosen for row in self.run(name, [word.format(name=name) for word in command])]
        show(rows)
        return 0 if all(row[4] in ("held", "skipped", "not judged") for row in rows) else 1


def show(rows: list[tuple[str, ...]]) -> None:
    table = [("", "ratio", "limit", "spread", ""), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    print()
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(Suite(HERE, NAMES).main(sys.argv[1:], [sys.executable, str(HERE / "{name}.py")]))
