"""The same input gives the same bytes in every process: nothing that is written depends on the order of a set."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.cli.same_bytes import ROOT


def test_every_byte_is_the_same_whatever_the_hash_seed() -> None:
    """Each program in two processes of four."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.cli.same_bytes", *part], cwd=ROOT, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        )
        for seed, part in (("0", ""), ("1", "0"), ("2", "1"), ("3", "2"))
    ]  # fmt: skip
    first, *others = [run.communicate()[0].splitlines() for run in runs]
    assert len(first) > 100 and all(run.returncode == 0 for run in runs)
    for at, other in enumerate(others):
        assert [(a, b) for a, b in zip(first[at::3], other, strict=True) if a != b] == []
