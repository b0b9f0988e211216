"""The peak of a plan that tells runs of equal layers once is that of all layers, on generated models: bytes, parts,
moment and operator, for each coordinate; so is its predicted step. Where layers are not alike, each is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from shardlang import driver
from shardlang.cost.predict import plain
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.peak import course
from shardlang.folds.peak.step import peaks_by_action, step_peaks, steps_of_memory
from shardlang.paths.patterns import Cuts, SingleLayers, in_turn
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from tests.plan.test_equal_layers import written


def planned(text: str, runs: Cuts | None) -> Plan:
    program = driver.check_source(Source("deep.shard", text), Sink(), runs=runs)
    found = driver.plan_program(program, None, 4, Sink()) if program is not None else None
    assert found is not None
    return found


def peaks(plan: Plan) -> Iterator[tuple[object, ...]]:
    """The peaks of coordinates, and of their actions, with paths for operators."""
    rows = [step_peaks(plan), *(peaks_by_action(plan, at) for at in range(len(step_peaks(plan))))]
    for peak in (peak for row in rows for peak in row):
        path = in_turn(plan.graph.ops[peak.op].path, peak.turn) if peak.op >= 0 else ""
        yield peak.bytes, peak.parts, peak.doing, path, peak.microbatch


def told(text: str) -> str:
    """Whether the peaks were found in runs, and are those of all layers."""

    def work(runs: Cuts | None, sink: Sink) -> tuple[Plan, list[tuple[object, ...]]]:
        plan = planned(text, runs)
        return plan, list(peaks(plan))

    few, found = driver.in_runs(work, Sink())
    if not few.graph.in_runs:
        return "single layers"
    every = planned(text, None)
    assert found == list(peaks(every))
    steps = [driver.predict_plan(plan, Sink()) for plan in (few, every)]
    assert [step and plain(step) for step in steps] == [steps[1] and plain(steps[1])] * 2
    assert steps[1] is not None or "large" not in text
    for at in range(len(step_peaks(every))):
        ops = [[op for op in steps_of_memory(plan, at) if op[2]] for plan in (few, every)]
        assert ops[0] == ops[1]
    return "runs"


@pytest.mark.parametrize("first", [1000, 1020, 1040])
def test_peaks_of_runs_are_those_of_all_layers(first: int) -> None:
    found = Counter(told(written(seed)) for seed in range(first, first + 20))
    assert found["runs"] >= 5, found


@pytest.mark.parametrize("seed", [
    381,  # a parameter is converted before the first operator of the layer that reads it
    1020,  # two stages do the same, with other values
    1057,  # each layer keeps something to the end of backward
    3144,  # two stages do the same, and give something else to the next
])  # fmt: skip
def test_peaks_that_were_another_ones(seed: int) -> None:
    assert told(written(seed)) == "runs"


def test_layers_that_differ_in_memory_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    text = next(text for text in map(written, range(1000, 1080)) if told(text) == "runs" and "stages" not in text)
    monkeypatch.setattr(course, "_shape", lambda section: object())
    with pytest.raises(SingleLayers):
        step_peaks(planned(text, {}))
