"""Rows of actions as text with repetitions: every schedule is read back as it was, in few words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlang.emit.text.repeats import repeats
from shardlang.facts.actions import Action
from shardlang.plan.pipeline.schedules import SCHEDULES
from shardlang.runtime.stages import Schedule


def read(rows: list[str]) -> list[list[Action]]:
    """As the runtime reads them."""
    table = Schedule("pp", (), rows).table
    return [[Action(action.stage, action.kind, action.microbatch) for action in row] for row in table]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("microbatches", [16, 64])
def test_a_schedule_is_read_back(name: str, microbatches: int) -> None:
    made = SCHEDULES[name].make(8 * SCHEDULES[name].virtual[0], 8, microbatches)
    rows = [" ".join(repeats(row)) for row in made]
    assert read(rows) == [list(row) for row in made]
    assert max(map(len, rows)) < 250


def test_what_repeats_is_said_once() -> None:
    rows = SCHEDULES["1f1b"].make(4, 4, 32)
    assert " ".join(repeats(rows[2])) == "2F0 (2F1 2B0)*31 2B31"
    looped = SCHEDULES["interleaved_1f1b"].make(4, 2, 8)
    assert " ".join(repeats(looped[1])) == "1F0 1F1 ((3F0 3B0)*2 (1F2 1B0)*2)*3+2 (3F6 3B6)*2 1B6 1B7"


ACTIONS = st.builds(Action, st.integers(0, 2), st.sampled_from("FB"), st.integers(0, 5))


@given(st.lists(st.lists(ACTIONS, max_size=4), max_size=8), st.integers(0, 3))
def test_any_row_is_read_back(groups: list[list[Action]], step: int) -> None:
    row = [Action(a.stage, a.kind, a.microbatch + at * step) for group in groups for at in range(4) for a in group]
    assert read([" ".join(repeats(row))]) == [row]
