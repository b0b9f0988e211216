"""A plan -> the stages that each of its steps is of, and the steps of each stage in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shardlang.frozen.records import remembered
from shardlang.plan.plan import Plan, Step


@remembered
def conversion_stages(plan: Plan) -> dict[int, set[int]]:
    """Conversion -> the stages that run it: the operator's; for parameters all their readers'."""
    found: dict[int, set[int]] = {c.id: set() for c in plan.conversions}
    for op in plan.ops:
        for use in op.operands:
            at = use.conversion
            while at >= 0:
                found[at].add(plan.stage(plan.graph.producers.get(use.value, op.op)))
                at = plan.conversions[at].parent
    for conversion in plan.conversions:
        if not found[conversion.id]:  # the loss as it is returned
            found[conversion.id].add(plan.stage(plan.graph.producers.get(conversion.value, 0)))
    return found


@remembered
def steps_of_stages(plan: Plan) -> Mapping[int, Sequence[Step]]:
    """Stage (0 without) -> its steps, in the plan's order."""
    here, found = conversion_stages(plan), dict[int, list[Step]]()
    for step in plan.steps:
        on = [plan.stage(plan.ops[step.index].op)] if step.kind == "op" else here[step.index]
        for stage in on:
            found.setdefault(stage, []).append(step)
    return found


def stages_by_coordinate(plan: Plan) -> list[tuple[int, ...]]:
    """Per coordinate along the axis of the stages, the stages that it runs."""
    on = plan.coordinates
    return [tuple(s for s, c in enumerate(on) if c == coordinate) for coordinate in range(len(plan.actions))]


def coordinates_of(plan: Plan, value: int) -> frozenset[int]:
    """The coordinates along the axis of the stages that use a parameter, state or field."""
    return frozenset(plan.coordinates[stage] for stage in plan.stages_of(value))


def used(plan: Plan, value: int, stages: Collection[int]) -> bool:
    """Whether one of `stages` uses a parameter, state or field."""
    return not set(plan.stages_of(value)).isdisjoint(stages)
