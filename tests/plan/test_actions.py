"""Lists of actions: when each runs, what it waits for, and what a file of them leaves out."""

from __future__ import annotations

import pytest

from shardlang.plan.pipeline.actions import missing, read, timeline

ORDERLY = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"


def test_a_stage_waits_for_the_one_before_and_backward_for_the_one_after() -> None:
    lines, slips = read(ORDERLY)
    found = timeline(lines, 2)
    assert slips == []
    assert found.stuck == (None, None)
    # Forward takes one unit, backward two.
    assert found.spans == (((0, 1), (1, 2), (4, 6), (7, 9)), ((1, 2), (2, 4), (4, 5), (5, 7)))
    assert found.bubble == pytest.approx(1 - 12 / 18)


@pytest.mark.parametrize(
    ("text", "stuck"),
    [
        ("0B0,0F0\n1F0,1B0", ["0B0", "1F0"]),  # its own forward
        ("0F0,0B0\n1B0,1F0", ["0B0", "1B0"]),  # the next stage's backward
        ("0F1,0F0,0B0,0B1\n1F0,1B0,1F1,1B1", [None, None]),
        ("0F0,0W0,0I0\n1F0,1B0", ["0W0", None]),  # parameters after inputs
    ],
)
def test_what_waits_for_ever(text: str, stuck: list[str | None]) -> None:
    lines, _ = read(text)
    found = timeline(lines, 2).stuck
    assert [a and f"{a.stage}{a.kind}{a.microbatch}" for a in found] == stuck


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ORDERLY, []),
        ("0F0,0I0,0W0\n1F0,1B0", []),
        ("0F0,0I0\n1F0,1B0", ["microbatch 0 in stage 0 has no `W`"]),
        ("0F0,0W0\n1F0,1B0", ["microbatch 0 in stage 0 has no `I`"]),
        ("0F0\n1F0,1B0", ["microbatch 0 in stage 0 has no backward"]),
        ("0B0\n1F0,1B0", ["microbatch 0 in stage 0 has no forward"]),
        ("0F0,0B0,0W0\n1F0,1B0", ["microbatch 0 in stage 0 has `B` and `W`"]),
        ("0F0,0B0,0B0\n1F0,1B0", ["`0B0` is done 2 times"]),
        ("0F0,0B0,0F1\n1F0,1B0", ["`0F1`: there is no microbatch 1"]),
    ],
)
def test_each_microbatch_goes_forward_and_backward_once(text: str, told: list[str]) -> None:
    lines, _ = read(text)
    microbatches = 2 if text == ORDERLY else 1
    assert [slip.message for slip in missing(lines, 2, microbatches)] == told
