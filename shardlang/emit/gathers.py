"""The order in which ZeRO 3 gathers parameters -> `rt.Order(...)`, an argument of the program or of
a stage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from shardlang.emit.text.fold import patterns, runs
from shardlang.emit.text.lines import call_text
from shardlang.facts.actions import ACTIONS, FORWARD
from shardlang.ops.python_text import literal
from shardlang.paths.patterns import indexes, span
from shardlang.plan.plan import Plan
from shardlang.step.zero3_gathers import GatherUnit, Orders, orders


def order_arguments(plan: Plan, stage: int, depth: int) -> list[str]:
    """`gathers=rt.Order(forward=.., backward=..)`, where ZeRO 3 stores parameters of a stage."""
    found = orders(plan)
    kinds = {action.kind for action in plan.actions[plan.coordinates[stage]] if action.stage == stage}
    each = {kind: found.passes.get((kind, stage), []) for kind in ACTIONS if kind in kinds}
    made = [f"{ACTIONS[kind].order}={_listed(found, _onward(kind, units))}" for kind, units in each.items() if units]
    return [f"gathers={call_text('rt.Order', made, depth + 2)}"] if made else []


def _onward(kind: str, units: Sequence[GatherUnit]) -> Sequence[GatherUnit]:
    """Units as they are listed: of a backward, the last one first."""
    return units if kind == FORWARD else units[::-1]


def _listed(found: Orders, units: Sequence[GatherUnit]) -> str:
    """Units in order, layers that follow each other in an array as a range."""
    paths, listed = tuple(found.cut.values()), list[object]()

    def array_of(unit: GatherUnit) -> str:
        return "" if unit.layer in found.parted else unit.layer.rpartition("[")[0]

    for array, group in groupby(units, array_of):
        if array:
            layers = ((indexes(unit.layer[len(array) + 1 : -1]), None) for unit in group)
            listed += [f"{array}{span(start, end)}" for start, end, _ in runs(layers)]
            continue
        for mine in (patterns((found.cut[value] for value in unit.params), paths) for unit in group):
            listed.append(mine if len(mine) > 1 else mine[0])
    return literal(tuple(listed))
