"""What a device's context and libraries take is not there for a plan: SH450 counts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardlang.folds.fits import device
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.reserved.communicators import PAIR
from shardlang.folds.reserved.footprint import footprint
from tests.cost.plans import plan_of
from tests.emit import sources
from tests.plan.small_llama import llama

TEXT = llama("mesh dp = 2\n  split batch over dp")
CARD = "device card {\n  memory = MEMORY\n  reserved = RESERVED\n}\n\n"


def reported(memory: int, reserved: int) -> list[str]:
    card = CARD.replace("MEMORY", f"{memory / 1000:.3f}kB").replace("RESERVED", f"{reserved / 1000:.3f}kB")
    _, sink = sources.tried(TEXT.replace("strategy s", card + "strategy s"), 2, "s")
    return [" ".join([d.code, d.message, *d.notes[0].split()]) for d in sink.found]


def test_memory_that_is_reserved_holds_no_plan() -> None:
    (peak,) = step_peaks(plan_of(TEXT, "s", 2))
    whole = footprint(plan_of(TEXT, "s", 2), 10**12, 2000)
    assert whole.allocated >= peak.bytes
    assert reported(whole.device, 2000) == []
    (found,) = reported(whole.device, 3000)
    assert found.startswith("SH450 ")
    assert found.endswith(", 3.00 kB are reserved, NCCL takes 571 MB for 1 group of ranks")


def test_a_rank_without_tensors_needs_room_for_what_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stage of layers that have no parameters may be one."""
    plan = plan_of(TEXT, "s", 2)
    monkeypatch.setitem(footprint.__globals__, "steps_of_memory", lambda *_: [])
    least = footprint(plan, 10**12, 2000).device
    assert [footprint(plan, memory, 2000).fits for memory in (least, least - 1)] == [True, False]


def test_nccl_takes_memory_for_each_group() -> None:
    """As much less is there for torch, and as much more is taken of the device; by the file's number if it has one."""
    plan = plan_of(TEXT, "s", 2)
    seen, said = footprint(plan, 10**12, 2000), footprint(plan, 10**12, 2000, group=3 * 10**8)
    assert (seen.groups, seen.nccl) == (1, PAIR) and (said.groups, said.nccl) == (1, 3 * 10**8)
    assert seen.reserved == said.reserved == seen.device - 2000 - PAIR == said.device - 2000 - 3 * 10**8
    card = CARD.replace("}", "  communicator = 300MB\n}").replace("MEMORY", "1GB").replace("RESERVED", "1kB")
    program = sources.checked(TEXT.replace("strategy s", card + "strategy s"), name="a.shard")
    found = device(program)
    assert found is not None and found.group == 3 * 10**8


@pytest.mark.parametrize(("profile", "expandable"), [(None, True), ({}, True), ({"expandable_segments": False}, False)])
def test_segments_grow_as_a_run_sets_it(profile: dict[str, bool] | None, expandable: bool, tmp_path: Path) -> None:
    named = "" if profile is None else '  profile = "card.json"\n'
    (tmp_path / "card.json").write_text(json.dumps(profile))
    card = CARD.replace("MEMORY", "1GB").replace("RESERVED", "1kB").replace("}", named + "}")
    found = device(sources.checked(TEXT.replace("strategy s", card + "strategy s"), str(tmp_path / "a.shard")))
    assert found is not None and found.expandable == expandable
