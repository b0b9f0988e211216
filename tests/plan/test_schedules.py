"""Schedules against torch.distributed.pipelining's own orders: what is computed, in which order, on each coordinate."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from torch.distributed.pipelining import schedules as theirs

from shardlang.facts.actions import Action
from shardlang.plan.pipeline.schedules import SCHEDULES

CLASSES = {
    "gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved_1f1b": "ScheduleInterleaved1F1B",
    "zero_bubble": "ScheduleInterleavedZeroBubble", "zbv": "ScheduleZBVZeroBubble", "dualpipe_v": "ScheduleDualPipeV",
}  # fmt: skip
KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def torchs(name: str, stages: int, coordinates: int, microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """The compute actions of torch's schedule: its methods on an object that has only what they read.

    With one stage a rank, those that it runs: the list that 1F1B prints is wrong for the last stage (torch 2.13).
    """
    if name in ("gpipe", "1f1b"):
        return tuple(recorded(name, stages, microbatches, stage) for stage in range(stages))
    kind: Any = getattr(theirs, CLASSES[name])
    made: Any = object.__new__(kind)
    made._n_microbatches, made._num_stages, made.num_stages = microbatches, stages, stages
    made.pp_group_size, made.n_local_stages = coordinates, stages // coordinates
    made.number_of_rounds = max(1, microbatches // coordinates)
    made.microbatches_per_round = microbatches // made.number_of_rounds
    order = {rank: made._calculate_single_rank_operations(rank) for rank in range(coordinates)}
    return tuple(tuple(x for action in order[rank] for x in flat(action)) for rank in range(coordinates))


def recorded(name: str, stages: int, microbatches: int, stage: int) -> tuple[Action, ...]:
    """What torch's schedule calls on a stage that only takes notes."""
    found: list[Action] = []
    notes: Any = Mock(stage_index=stage)
    for kind in "FB":
        notes.attach_mock(Mock(return_value=[]), f"get_{'fwd' if kind == 'F' else 'bwd'}_recv_ops")
        notes.attach_mock(Mock(return_value=[]), f"get_{'fwd' if kind == 'F' else 'bwd'}_send_ops")
    notes.forward_one_chunk = lambda m, *_, **__: found.append(Action(stage, "F", m))
    notes.backward_one_chunk = lambda m, **_: found.append(Action(stage, "B", m))
    made: Any = object.__new__(getattr(theirs, CLASSES[name]))
    made._stage, made._num_stages, made._n_microbatches, made.scale_grads = notes, stages, microbatches, False
    made._check_inputs = lambda *_: ([()] * microbatches, [{}] * microbatches)
    for method in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"):
        setattr(made, method, Mock())
    made._step_microbatches()
    return tuple(found)


def flat(action: Any) -> list[Action]:
    if action is None:
        return []
    if getattr(action, "sub_actions", None):
        return [x for sub in action.sub_actions for x in flat(sub)]
    kind = KINDS.get(action.computation_type.name)
    return [] if kind is None else [Action(action.stage_index, kind, action.microbatch_index)]


CASES = [
    (name, virtual * coordinates, coordinates, microbatches)
    for name, schedule in SCHEDULES.items()
    for coordinates in (1, 2, 3, 4, 8)
    for virtual in range(schedule.virtual[0], min(schedule.virtual[1], 3) + 1)
    for microbatches in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20)
    if schedule.fits(virtual * coordinates, coordinates, microbatches)
]


def test_schedules_are_torchs() -> None:
    assert len(CASES) > 250
    for name, stages, coordinates, microbatches in CASES:
        found = SCHEDULES[name].make(stages, coordinates, microbatches)
        assert found == torchs(name, stages, coordinates, microbatches), (name, stages, coordinates, microbatches)


@pytest.mark.parametrize("name", SCHEDULES)
def test_everything_is_done_once_on_its_coordinate(name: str) -> None:
    for other, stages, coordinates, microbatches in CASES:
        if other != name:
            continue
        place = SCHEDULES[name].place(stages, coordinates)
        seen: dict[tuple[int, int], list[str]] = {}
        for rank, actions in enumerate(SCHEDULES[name].make(stages, coordinates, microbatches)):
            for action in actions:
                assert place[action.stage] == rank
                seen.setdefault((action.stage, action.microbatch), []).append(action.kind)
        assert set(seen) == {(s, m) for s in range(stages) for m in range(microbatches)}
        assert {"".join(kinds) for kinds in seen.values()} <= {"FB", "FIW"}
