"""Published steps of Megatron are predicted within their limits, from plans; units and profiles are right."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.__main__ import HERE
from shardlang.cost.prices import Prices
from shardlang.cost.scripts import Scripts
from shardlang.cost.timeline import course


@pytest.fixture(scope="module")
def scripts() -> SimpleNamespace:
    """The benchmark's modules, which import each other as a script's folder allows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        import executed
        import executors
        import published_rows
        import published_times
        import published_work

        return SimpleNamespace(
            executed=executed, executors=executors, rows=published_rows, times=published_times, work=published_work
        )


def of(scripts: SimpleNamespace, *names: str) -> list[object]:
    return [row for row in scripts.rows.read(scripts.times.ROWS) if row.id.startswith(names)]


def test_korthikanti_and_narayanan(scripts: SimpleNamespace) -> None:
    rows = of(scripts, "K22", "N21")
    share = next(scripts.times.fitted(row) for row in rows if row.fit)
    found = scripts.times.found(rows, {"selene": share})
    errors = {each.row.id: each.error for each in found}
    assert len(errors) == 10 and 0.7 < share < 0.9
    assert abs(errors["K22-175B-full"]) < 1e-6  # fitted
    assert statistics.mean(map(abs, errors.values())) <= 0.05, errors
    assert max(map(abs, errors.values())) <= 0.10, errors


@pytest.mark.parametrize("name", ["K22-22B-seqsel", "TT-8B-8"])
def test_a_layer_is_what_each_layer_adds(scripts: SimpleNamespace, name: str) -> None:
    """The plan of five layers has the work of the ends and of five layers, item by item."""
    (row,) = of(scripts, name)
    profile = scripts.work.profile(row)
    whole = scripts.work.whole(row, 5)
    for part in scripts.work.NAMES:
        expected = Counter(getattr(profile.first, part)) + getattr(profile.last, part)
        for _ in range(5):
            expected += getattr(profile.layer, part)
        assert getattr(whole, part) == expected, part
    assert whole.updated == profile.first.updated + 5 * profile.layer.updated


def test_units_agree(scripts: SimpleNamespace) -> None:
    """One step, told in each unit."""
    (row,) = of(scripts, "K22-22B-full")
    flops = scripts.work.profile(row).flops
    assert row.seconds(flops) == row.measured == 1.42
    told = {
        "milliseconds a step": 1420.0, "tokens/s a device": 4 * 2048 / 8 / 1.42,
        "model TFLOP/s a device, attention causal half": flops / 8 / 1e12 / 1.42,
    }  # fmt: skip
    for unit, measured in told.items():
        assert scripts.rows.dataclasses.replace(row, unit=unit, measured=measured).seconds(flops) == pytest.approx(1.42)
    # Of a forward, a forward again and two of backward, less attention's masked half.
    whole = scripts.rows.dataclasses.replace(row, unit="TFLOP/s a device, recomputation included", measured=1.0)
    assert whole.seconds(flops) * 1e12 * 8 == pytest.approx(flops * 4 / 3, rel=0.05)


@pytest.mark.parametrize("name", ["K22-175B-full", "VT-094"])
def test_the_timeline_of_a_pipeline(scripts: SimpleNamespace, name: str) -> None:
    """In closed form: all microbatches on the slowest coordinate, a chunk of each other coordinate to fill and drain
    the pipeline, then the sums and the update. Interleaved, and not.
    """
    (row,) = of(scripts, name)
    machine = scripts.executors.machine_of(row)
    work = scripts.executed.executed(row, machine.system)
    prices = Prices(work, machine.hardware)
    made = Scripts(prices, machine.system.overlap)
    stages = [sum(beat.total for kind in "FB" for beat in made.script(at, kind)) for at in range(len(work.stages))]
    slowest = max(range(row.pp), key=lambda at: sum(stages[at :: row.pp]))
    chunks = len(stages) // row.pp
    others = [sum(stages[at :: row.pp]) / chunks for at in range(row.pp) if at != slowest]
    found = course(prices, machine.system.overlap)
    line = found.lines[slowest]
    once = sum(line.once.values()) + sum(beat.total * n for beat, n in line.beats.items() if beat.layer == "step")
    once += sum(seconds for (_, kind, _), seconds in line.waits.items() if kind == "all_reduce")
    assert found.step == pytest.approx(row.microbatches * sum(stages[slowest :: row.pp]) + sum(others) + once, rel=0.01)


def test_rows_that_cannot_be(scripts: SimpleNamespace, tmp_path: Path) -> None:
    given = {
        "id": "X", "measured": 1.0, "unit": "seconds a step", "machine": "selene", "batch": 8, "d": 1024, "heads": 8,
        "layers": 2, "micro_batch": 1,
    }  # fmt: skip
    wrong: dict[str, dict[str, object]] = {
        "X: no field `colour` is known": {"colour": 3},
        "X: the field `batch` is missing": {"batch": None},
        "X: `recompute` is one of none, selective, full, not `some`": {"recompute": "some"},
        "X: `order` has dp, pp, cp and tp, each once, not `dp tp`": {"order": "dp tp"},
        "X: a batch of 8 is no multiple of dp x micro_batch": {"micro_batch": 3},
    }
    for message, changed in wrong.items():
        row = {name: value for name, value in {**given, **changed}.items() if value is not None}
        path = tmp_path / "rows.json"
        path.write_text(json.dumps({"rows": [row]}))
        with pytest.raises(SystemExit, match=re.escape(message)):
            scripts.rows.read(path)
