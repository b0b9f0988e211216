"""A few of the trials of `python -m tests.kills`: a run that loses a rank goes on with the same numbers."""

from __future__ import annotations

from pathlib import Path

from tests.kills.kills import trials


def test_runs_that_lose_a_rank_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    found = trials(2, 1, 1, tmp_path, seed=5, tell=said.append)
    assert not said and len(found) == 3
    assert [each.way for each in found] == ["forked", "apart", "forked"]
    assert any(each.hit is not None and each.hit.saving for each in found[:2])
