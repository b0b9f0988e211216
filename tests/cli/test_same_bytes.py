"""The same input gives the same bytes in every process: nothing that is written depends on the order of a set."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cli.same_bytes import ROOT


def test_every_byte_is_the_same_whatever_the_hash_seed() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.cli.same_bytes"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        )
        for seed in ("0", "1", "2", "3")
    ]  # fmt: skip
    first, *others = [run.communicate()[0].splitlines() for run in runs]
    assert len(first) > 100 and all(run.returncode == 0 for run in runs)
    for other in others:
        assert [(a, b) for a, b in zip(first, other, strict=True) if a != b] == []
