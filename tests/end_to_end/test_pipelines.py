"""A few of the generated pipelines: `python -m tests.end_to_end.pipelines` runs as many as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.pipelines import differs, planned, written

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [0, 6, 7, 8, 12, 14, 15, 29, 30, 38, 39, 40, 44, 67, 84, 188])
def test_bytes_of_a_pipeline_are_those_of_real_ranks(seed: int, tmp_path: Path) -> None:
    """GPT-2 over stages, with data and tensor parallelism, ZeRO 1 to 3, in four schedules; weights that are used twice
    under each that cuts backward in two; parts of gradients that are views, and of which a copy is read; rows; some
    layers of a later stage in a row; a bucket that ends with a bias, which is cast with its weight."""
    text, ranks = written(seed)
    plan = planned(text, ranks)
    assert plan is not None and differs(plan, text, tmp_path) == []
