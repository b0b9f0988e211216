"""Microbatches change no figure: emitted programs on real ranks against one rank that takes its batches whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.curves import ROOT, Figures, RunOf, figures

pytestmark = pytest.mark.slow
ALONE = RunOf("alone", 1)
TAGGER = (ROOT / "tests" / "emit" / "programs" / "tagger.shard").read_text()
RUNS = [RunOf("parts", 1), RunOf("both", 4), *(RunOf(f"zero{level}", 4) for level in (1, 2, 3))]


def same(one: Figures, other: Figures, what: str, tolerance: float) -> None:
    assert len(one.steps) == len(other.steps) > 0
    for mine, theirs in zip(one.steps + one.evaluations, other.steps + other.evaluations, strict=True):
        for name in set(mine) - {"step_ms"}:
            assert mine[name] == pytest.approx(theirs[name], rel=tolerance, abs=tolerance), (what, name)


def test_a_masked_loss_and_metrics_of_totals(tmp_path: Path) -> None:
    found = figures(TAGGER, [ALONE, *RUNS], tmp_path)
    assert "perplexity" in found[ALONE].steps[0] and "eval.perplexity" in found[ALONE].evaluations[0]
    for run in RUNS:
        same(found[run], found[ALONE], run.name, 1e-9)
