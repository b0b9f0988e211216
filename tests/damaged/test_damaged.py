"""A few of the trials of `python -m tests.damaged`: runs that go on from damaged checkpoints are right, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.damaged.damaged import trials

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", [3, 10, 13, 17])
def test_runs_that_go_on_from_what_is_damaged_are_right_or_refused(tmp_path: Path, first: int) -> None:
    said: list[str] = []
    found = trials(1, tmp_path, seed=1, tell=said.append, first=first)
    assert not said and len(found) == 1
