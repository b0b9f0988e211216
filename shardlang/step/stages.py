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
    assert plan.pipeline is not None
    on, count = plan.pipeline.coordinates, plan.pipeline.mesh.axis_size(plan.pipeline.axis)
    return [tuple(s for s, c in enumerate(on) if c == coordinate) for coordinate in range(count)]


def coordinates_of(plan: Plan, value: int) -> frozenset[int]:
    """The coordinates along the axis of the stages that use a parameter, state or field; 0 alone
    without stages."""
    if plan.pipeline is None:
        return frozenset((0,))
    return frozenset(plan.pipeline.coordinates[stage] for stage in plan.pipeline.param_stages.get(value, ()))


def used(plan: Plan, value: int, stages: Collection[int] | None) -> bool:
    """Whether one of `stages` (None: all) uses a parameter, state or field."""
    if stages is None or plan.pipeline is None:
        return True
    return not set(plan.pipeline.param_stages.get(value, ())).isdisjoint(stages)
