"""The translator in three dimensions, in brief: `python -m tests.end_to_end.translator` is the whole of it.

On pairs made here, in float64, two steps: the schedule of the example on dp 2 * mp 2 * pp 2, V-shaped stages on two.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.translator import SCHEDULES, Bench, Run, emitted, made_pairs, runs, wrong

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("translator"), made_pairs(), steps=2)
    yield found
    found.close()


@pytest.mark.parametrize(
    "run", [Run("three_d", 8, {"mp": 2}, "1f1b"), Run("three_d", 2, {"mp": 1}, "dualpipe_v", 2)], ids=lambda r: r.name
)
def test_curves_are_those_of_one_rank(run: Run, bench: Bench) -> None:
    judged = bench.judged(run, "f64")
    assert not wrong(judged, "f64", falls=False), judged


def test_every_strategy_and_schedule_is_among_the_runs() -> None:
    found = list(runs((1, 2, 4, 8)))
    assert {run.strategy for run in found} == {"data_parallel", "model_parallel", "three_d"}
    cubic = {(run.schedule, run.virtual) for run in found if run.ranks == 8 and run.axes == {"mp": 2}}
    assert cubic == set(SCHEDULES)


def test_schedules_are_in_the_emitted_program() -> None:
    for schedule, virtual in SCHEDULES:
        files = emitted(Run("three_d", 2, {"mp": 1}, schedule, virtual), "f32", 1)
        assert {f"stage{s}.py" for s in range(2 * virtual)} < set(files)
        assert schedule in files["main.py"]
