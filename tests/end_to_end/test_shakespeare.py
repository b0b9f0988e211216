"""The same curve as the library's, in brief: `python -m tests.end_to_end.shakespeare` is the whole of it.

On made text, in float64, four steps of GPT-2 on dp 2 * mp 2 * pp 2.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.shakespeare import BATCH, SEQ, both, furthest

pytest.importorskip("transformers", reason="the package transformers (extra `oracle`) is not installed")
pytestmark = pytest.mark.slow
STEPS = 4


def test_gpt2_on_eight_ranks(tmp_path: Path) -> None:
    words = " ".join(f"word{n * n % 97}" for n in range(STEPS * BATCH * SEQ // 4))
    ours, theirs = both("gpt2", "f64", STEPS, tmp_path / "run", words.encode())
    assert len(ours) == STEPS
    assert furthest(ours, theirs) < 1e-12
