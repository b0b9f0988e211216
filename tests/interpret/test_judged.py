"""An optimizer is judged by what it makes of the gradients that the ranks have, and not of those of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardlang.interpret.ranks import optimizers
from shardlang.interpret.ranks.optimizers import Optimizers
from shardlang.plan.plan import Plan
from tests.emit import sources
from tests.interpret.verify_plan import verify_plan

SHIFTED = Path(__file__).resolve().parents[1] / "end_to_end" / "shifted.shard"
RULES = dict(optimizers.RULES)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Adam of a parameter whose true gradient is zero."""
    return sources.planned(SHIFTED.read_text(), 2, "dp", name="shifted.shard")


def test_what_rounding_makes_of_a_gradient_of_zero_is_no_difference(plan: Plan) -> None:
    """Of one seed rounding may be the same on one device by chance."""
    for seed in range(3):
        report = verify_plan(plan, steps=3, seed=seed, tolerance=1e-3, dtype="f32")
        assert report.ok, str(report.difference)


def other_eps(x: Any, gradient: Any, memory: Any, step: int, arguments: Any) -> Any:
    return RULES["adam"](x, gradient, memory, step, {**arguments, "eps": 1e-7})


def backwards(x: Any, gradient: Any, memory: Any, step: int, arguments: Any) -> Any:
    return 2 * x - RULES["adam"](x, gradient, memory, step, arguments)


@pytest.mark.parametrize("wrong", [other_eps, backwards])
def test_a_fault_of_that_size_is_found(plan: Plan, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks' optimizer does something else with `s` alone, by as much as rounding might."""
    right = Optimizers.stored
    s = next(v for v in plan.graph.params if plan.graph.values[v].path == "s")

    def stored(self: Optimizers, kept: Any, gradients: Any, rows: Any) -> Any:
        after = right(self, kept, gradients, rows)
        memory: dict[Any, Any] = {}
        local = zip(kept[s], gradients[s], strict=True)
        return {**after, s: [wrong(x, g, memory, self.step, {"lr": 1e-2, "eps": 1e-8}) for x, g in local]}

    monkeypatch.setattr(Optimizers, "stored", stored)
    report = verify_plan(plan, steps=1, tolerance=1e-3, dtype="f32")
    assert report.difference is not None and (report.difference.kind, report.difference.path) == ("parameter", "s")
