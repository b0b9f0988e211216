"""The course of a step: it adds up, few microbatches stand for many, and more work is never faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardlang.cost import overlap
from shardlang.cost.hardware import Hardware
from shardlang.cost.overlap import EMITTED
from shardlang.cost.planned import work
from shardlang.cost.predict import predict, predict_work
from shardlang.cost.prices import Prices
from shardlang.cost.timeline import course
from shardlang.folds.traffic import sent
from shardlang.plan.plan import Plan
from tests.cost.overlaps import LINES
from tests.cost.plans import NAMES, PLANS, plan_of, small
from tests.plan.small_llama import llama

ROOT = Path(__file__).resolve().parents[2]
POD = Hardware(
    "h100", "pod", memory=80e9, compute=989e12, compute_f32=60e12, bandwidth=3350e9, link=450e9, devices=2, network=50e9
)


@pytest.mark.parametrize("make", PLANS, ids=NAMES)
def test_layers_and_idle_add_up_to_the_step(make: Callable[[], Plan]) -> None:
    found = predict(make(), POD)
    assert found.step_s > 0 and found.compute_s > 0 and 0 <= found.bubble < 1
    assert sum(part.total for part in found.by_layer.values()) + found.idle_s == pytest.approx(found.step_s, rel=1e-9)
    exposed = sum(part.exposed_s for part in found.by_layer.values())
    assert sum(found.exposed_s.values()) == pytest.approx(exposed, rel=1e-9, abs=1e-15)


PIPELINE = "mesh pp = 2, dp = 2; split batch over dp; stages over pp balanced; microbatches 16; schedule "


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"])
@pytest.mark.parametrize("zero", ["", "; zero 3 over dp"])
def test_few_microbatches_stand_for_many(schedule: str, zero: str) -> None:
    text = llama((PIPELINE + f'"{schedule}"' + zero).replace("; ", "\n  "), "bf16").replace("batch = 8", "batch = 64")
    prices = Prices(work(plan_of(text, "s", 4)), POD)
    few, whole = course(prices, EMITTED), course(prices, EMITTED, whole=True)
    assert few.step == pytest.approx(whole.step, rel=2e-3)
    assert len(few.lines[0].spans) < len(whole.lines[0].spans)


def test_many_microbatches_without_stages() -> None:
    text = llama("mesh dp = 4\n  split batch over dp\n  zero 3 over dp\n  microbatches 16", "bf16")
    prices = Prices(work(plan_of(text.replace("batch = 8", "batch = 64"), "s", 4)), POD)
    assert course(prices, EMITTED).step == pytest.approx(course(prices, EMITTED, whole=True).step, rel=1e-6)


def test_nothing_that_runs_beside_makes_a_step_longer() -> None:
    """Without each overlap a step takes as long or longer."""
    rules = "mesh dp = 2, tp = 2; split batch over dp; split heads, kv_heads, ffn, vocab over tp; zero 3 over dp"
    found = work(small(rules, 4))
    step = predict_work(found, POD).step_s
    for without in (replace(EMITTED, ahead=0), replace(EMITTED, dual=False), replace(EMITTED, reductions=False)):
        assert predict_work(found, POD, without).step_s > step
    assert predict_work(found, POD, replace(EMITTED, one_sum=False)).step_s <= step
    assert predict_work(found, POD, replace(EMITTED, copies=False)).step_s < step


def test_an_update_waits_for_the_last_sum() -> None:
    """By links so slow that nothing else counts, a step takes as long as its sums of gradients."""
    plan = small("mesh dp = 2; split batch over dp", 2)
    slow, slower = (predict(plan, replace(POD, link=link)).step_s for link in (1e5, 0.5e5))
    assert slower == pytest.approx(2 * slow, rel=0.05)


def test_faster_hardware_is_faster() -> None:
    plan = small(PIPELINE.replace("16", "4") + '"1f1b"', 4)
    step = predict(plan, POD).step_s
    for field in ("compute", "bandwidth", "link", "network"):
        assert predict(plan, replace(POD, **{field: 2 * getattr(POD, field)})).step_s < step
    slower = predict(plan, POD, spread=0.1)
    assert slower.step_s == pytest.approx(1.1 * step)
    assert sum(p.total for p in slower.by_layer.values()) + slower.idle_s == pytest.approx(slower.step_s, rel=1e-9)


def test_each_overlap_names_a_function_and_a_test_that_are_there() -> None:
    fields = set(overlap.Overlap.__slots__)
    assert {line.field for line in LINES} - {""} == fields
    for line in LINES:
        file, _, name = line.function.partition(": ")
        assert f"def {name}(" in (source := (ROOT / "shardlang" / file).read_text()) or f"class {name}(" in source
        file, _, name = line.test.partition(": ")
        assert f"def {name}(" in (ROOT / file).read_text()


class _Bytes(Prices):
    """Prices of a collective in bytes."""

    def collective(self, kind: str, mesh: int, axes: tuple[str, ...], size: float) -> float:
        return float(size)


@pytest.mark.parametrize("make", PLANS, ids=NAMES)
def test_parameters_travel_as_often_as_the_plan_says(make: Callable[[], Plan]) -> None:
    plan = make()
    made = work(plan)
    for coordinate, line in zip(made.coordinates, course(_Bytes(made, POD), EMITTED, whole=True).lines, strict=True):
        sizes = [span.end - span.begin for span in line.spans if span.name.startswith("all_gather ")]
        mine = [x for x in sent(plan) if x.what == "parameters" and not x.stages.isdisjoint(coordinate.stages)]
        assert sum(sizes) == pytest.approx(sum(x.forward_bytes + x.backward_bytes for x in mine), rel=1e-9)
