"""The one test command, `python -m tests`: lint, types, layers of imports, then all tests. Arguments go to pytest."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def main() -> int:
    """Runs every step, also after one has failed; 0 where all passed."""
    ruff = str(BIN / "ruff")
    checks = [
        [ruff, "check", "."], [ruff, "format", "--check", "."],
        [str(BIN / "mypy")], [str(BIN / "lint-imports"), "--no-cache"],
    ]  # fmt: skip
    # Each worker begins with a third of the tests, in order, so that most share what a module has made once; who is
    # done first takes from another's end. Three for two processors: a fifth of the time a test waits for something.
    tests = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "worksteal", *sys.argv[1:]]
    failed = []
    # The checks take one processor each, beside the tests, and are told of after them.
    with contextlib.ExitStack() as files:
        told = [files.enter_context(tempfile.TemporaryFile()) for _ in checks]
        started = [
            subprocess.Popen(check, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
            for check, out in zip(checks, told, strict=True)
        ]
        print(f"== {_name(tests)}", flush=True)
        # Modules are compiled once, not by every worker and every Python that a test starts.
        if subprocess.run(tests, cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""}).returncode != 0:
            failed.append(_name(tests))
        for process, check, out in zip(started, checks, told, strict=True):
            if process.wait() != 0:
                failed.append(_name(check))
            out.seek(0)
            print(f"== {_name(check)}\n{out.read().decode(errors='replace')}", end="", flush=True)
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


def _name(command: list[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:]])


if __name__ == "__main__":
    sys.exit(main())
