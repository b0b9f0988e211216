"""What is wrong with a plan is found and named: plans with one deliberate fault each, and duals that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from shardlang.interpret.ranks import exchanges
from shardlang.plan.plan import Move, MoveKind, Plan
from shardlang.types.layout import Layout
from tests.emit.sources import planned
from tests.interpret.verify_plan import verify_plan
from tests.plan.small import example, strategy

RULES = {
    "quickstart": ("at h: shard ((2, 4), (4, 1))", 8),
    "digits": ("mesh dp = 2, mp = 2; split batch over dp; split hidden over mp", 4),
}


def plan_of(name: str) -> Plan:
    rules, ranks = RULES[name]
    return planned(example(name, strategy(rules)), ranks)


def param(plan: Plan, path: str, **changes: object) -> Plan:
    value = next(v.id for v in plan.graph.values if v.path == path)
    return replace(plan, params={**plan.params, value: replace(plan.params[value], **changes)})


def moved(plan: Plan, index: int, kind: MoveKind | None = None, **changes: object) -> Plan:
    """The plan with one conversion's move changed."""
    conversions = list(plan.conversions)
    old = conversions[index].move
    conversions[index] = replace(conversions[index], move=Move(kind or old.kind, old.axes, old.dim, old.from_dim))
    if changes:
        conversions[index] = replace(conversions[index], move=replace(conversions[index].move, **changes))
    return replace(plan, conversions=tuple(conversions))


def skipped(plan: Plan, path: str) -> Plan:
    """The operator that makes a value reads all its operands as produced, whatever it should convert."""
    value = next(v.id for v in plan.graph.values if v.path == path)
    op = plan.graph.producers[value]
    ops = list(plan.ops)
    ops[op] = replace(ops[op], operands=tuple(replace(u, conversion=-1) for u in ops[op].operands))
    return replace(plan, ops=tuple(ops))


def claimed(plan: Plan, path: str, change: Callable[[Layout], Layout]) -> Plan:
    value = next(v.id for v in plan.graph.values if v.path == path)
    return replace(plan, produced={**plan.produced, value: change(plan.produced[value])})


def factors(plan: Plan, path: str, axes: tuple[tuple[str, ...], ...]) -> Plan:
    value = next(v.id for v in plan.graph.values if v.path == path)
    op = plan.graph.producers[value]
    ops = list(plan.ops)
    ops[op] = replace(ops[op], factor_axes=axes)
    return replace(plan, ops=tuple(ops))


# fault -> (program, change, kind of the difference, path of the value it is found at)
FAULTS = {
    "a gradient that is not reduced": (
        "digits", lambda p: param(p, "up.weight", reduce_axes=()), "stored gradient", "up.weight"),
    "a gradient reduced over too much": (
        "digits", lambda p: param(p, "up.weight", reduce_axes=("dp", "mp")), "stored gradient", "up.weight"),
    "a reduce-scatter along the wrong dim": ("quickstart", lambda p: moved(p, 0, dim=0), "value", "h"),
    "a reduce-scatter over the wrong axis": ("quickstart", lambda p: moved(p, 0, axes=("a",)), "value", "h"),
    "a sum that is not taken": ("quickstart", lambda p: skipped(p, "a"), "value", "a"),
    "a slice in place of a reduce-scatter": ("quickstart", lambda p: moved(p, 0, MoveKind.I_TO_S), "value", "h"),
    "a pending sum called whole": (
        "quickstart", lambda p: claimed(p, "h", lambda x: replace(x, pending=())), "value", "h"),
    "a loss normalised by the local count": (
        "digits", lambda p: factors(p, "train.loss", ((), ())), "value", "train.loss"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found_and_named(fault: str) -> None:
    name, change, kind, path = FAULTS[fault]
    assert verify_plan(plan_of(name)).ok
    report = verify_plan(change(plan_of(name)))
    assert not report.ok and report.difference is not None
    assert (report.difference.kind, report.difference.path) == (kind, path), str(report.difference)


def reversed_gather(xs: list[Tensor]) -> list[Tensor]:
    return exchanges.gathered(1, xs[::-1])


def test_a_wrong_dual_is_found_at_the_gradient_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, right = plan_of("digits"), exchanges.row
    monkeypatch.setattr(exchanges, "row", lambda move, part_sizes=(): (right(move, part_sizes)[0], reversed_gather))
    report = verify_plan(plan)
    assert report.difference is not None
    assert (report.difference.kind, report.difference.path) == ("gradient", "down.return:1")
    assert report.values == len(plan.produced) + len(plan.conversions)


def test_what_a_difference_says() -> None:
    report = verify_plan(moved(plan_of("quickstart"), 0, MoveKind.I_TO_S))
    text = str(report.difference)
    assert text.startswith("step 1: `h` [batch@a, hidden@b] (example.shard:11): rank 3 at [")
    assert text.endswith(" on one device")
    report = verify_plan(moved(plan_of("quickstart"), 0, dim=7))
    assert "`h` [batch@a, hidden@b] (example.shard:11): cannot be computed: IndexError" in str(report.difference)
    report = verify_plan(moved(plan_of("quickstart"), 0, dim=0))
    assert "rank 0: [2, 16] where the layout says [8, 4]" in str(report.difference)
