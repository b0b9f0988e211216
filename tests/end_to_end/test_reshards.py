"""A run goes on under another layout with the numbers that it had (`python -m tests.reshards` goes through all)."""

from __future__ import annotations

import sys

import pytest

from tests import warm


@pytest.mark.slow
def test_a_run_changes_its_layout_and_no_number(tmp_path) -> None:
    done = warm.run([sys.executable, "-m", "tests.reshards", "cube", "pp", "dp"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("204 tensors as they were saved") == 2
