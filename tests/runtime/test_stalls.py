"""Which rank is to blame where nothing gets on: ranks as their records show them, none of which is there."""

from __future__ import annotations

import pytest

from shardlang.runtime.launch.reports import CollectiveCall, RankStatus
from shardlang.runtime.launch.stalls import FIRST, LEAST, STEPS, stalled

GONE = 2**22 + 1  # no process has this number


def rank(number: int, *, ahead: bool, slow: bool, usual: float = 0.0, waits: bool = True) -> RankStatus:
    """One of two ranks that has got no further since 0 s. slow: it starts, compiles or evaluates."""
    phase, allowance = ("starting", 1800.0) if slow else ("training", 0.0)
    call = CollectiveCall(
        1, 0.0, 0.0 if not waits else 0.1, 0.0, 4, 1, 1, 0, -1, "", "all-reduce", "dp", frozenset({0, 1}), ""
    )
    return RankStatus(number, 2, GONE, "here", 0, 1, phase, False, 0.0, allowance, usual, ahead, [call])


def both(now: float, given: float | None = None, **how: object) -> float | None:
    """The limit that two ranks which both wait are past; None: they may go on."""
    found = stalled([rank(0, **how), rank(1, **how)], given, now)  # type: ignore[arg-type]
    assert found is None or (found.all_wait and found.idle == now)
    return None if found is None else found.limit


def test_ranks_of_the_cpu_that_all_wait_are_stuck_in_their_first_step_too() -> None:
    assert both(LEAST - 1, ahead=False, slow=True) is None
    assert both(LEAST + 1, ahead=False, slow=True) == LEAST


def test_ranks_on_devices_may_wait_for_their_own_first_step() -> None:
    """The host has given the device all of a step, its sums too, and waits until it is done."""
    assert both(FIRST - 1, ahead=True, slow=True) is None
    assert both(FIRST + 1, ahead=True, slow=True) == FIRST
    assert both(LEAST + 1, ahead=True, slow=False) == LEAST


def test_later_steps_are_held_to_those_before() -> None:
    assert both(STEPS * 9.0 - 1, ahead=True, slow=False, usual=9.0) is None
    assert both(STEPS * 9.0 + 1, ahead=True, slow=False, usual=9.0) == STEPS * 9.0


@pytest.mark.parametrize("slow", [False, True])
def test_a_limit_that_is_given_holds_always(slow: bool) -> None:
    assert both(3.0, given=2.0, ahead=True, slow=slow) == 2.0


def test_a_rank_that_does_not_wait_has_its_allowance() -> None:
    """It reads data or compiles, and the other waits for it."""
    ranks = [rank(0, ahead=True, slow=True, waits=False), rank(1, ahead=True, slow=True)]
    assert stalled(ranks, None, FIRST + 1) is None
    found = stalled(ranks, None, 1801.0)
    assert found is not None and (found.rank, found.all_wait) == (0, False)
