"""A plan's pipeline -> what of it is shown: stages with their layers, the order of actions, idle
time, a drawing.

Plain lists, numbers and strings; bytes are added by report.py, printing is the command's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.facts.actions import Action
from shardlang.graph.graph import Op
from shardlang.ops.families.internal import TRANSFER
from shardlang.paths.patterns import places
from shardlang.plan.pipeline import actions as lists
from shardlang.plan.pipeline.balance import Cost, cost
from shardlang.plan.pipeline.stages import ancestors, enclosing
from shardlang.plan.plan import Pipeline, Plan
from shardlang.types.mesh import Mesh


def whole_mesh(plan: Plan, index: int) -> Mesh:
    """A mesh of all ranks, with the axis of the stages and without microbatches."""
    mesh, pipeline = plan.meshes[index].timeless, plan.pipeline
    if pipeline is None:
        return mesh
    if index == 0:
        return Mesh(pipeline.mesh.axes, mesh.name)
    # Further factorings stand beside stages only where the axis of the stages is the first.
    return Mesh((pipeline.mesh.axes[0], *mesh.axes), mesh.name)


def pipeline_report(plan: Plan) -> dict[str, Any] | None:
    pipeline = plan.pipeline
    if pipeline is None:
        return None
    costs = stage_costs(plan)
    units = lists.timeline(pipeline.actions, len(pipeline.coordinates))
    weighed = lists.timeline(pipeline.actions, len(pipeline.coordinates), lambda a: action_cost(costs[a.stage], a))
    in_stage: list[list[Op]] = [[] for _ in pipeline.coordinates]
    for op, stage in zip(plan.graph.ops, pipeline.op_stage, strict=True):
        in_stage[stage].append(op)
    alive, own = lists.most_alive(pipeline.actions), layers(plan, pipeline)
    return {
        "axis": pipeline.axis,
        "schedule": pipeline.schedule,
        "bubble": round(units.bubble, 4),
        "bubble_by_cost": round(weighed.bubble, 4),
        "stages": [
            {
                "stage": stage,
                "coordinate": coordinate,
                "layers": own[stage],
                "operators": sum(map(plan.graph.times, in_stage[stage])),
                "alive": alive.get(stage, 0),
                "cost": costs[stage].total,
            }
            for stage, coordinate in enumerate(pipeline.coordinates)
        ],
        "actions": [" ".join(lists.text(a) for a in line) for line in pipeline.actions],
        "drawing": drawing(pipeline, units),
    }


def stage_costs(plan: Plan) -> list[Cost]:
    """Per stage the work of one microbatch, in multiply-adds times two."""
    assert plan.pipeline is not None
    found = [Cost()] * len(plan.pipeline.coordinates)
    for op in plan.graph.ops:
        stage = plan.pipeline.op_stage[op.id]
        found[stage] += cost(plan.graph, op).times(plan.graph.times(op))
    return found


def action_cost(stage: Cost, action: Action) -> int:
    both = stage.inputs * action.to_inputs + stage.parameters * action.to_parameters
    return stage.forward if action.forward else both


def layers(plan: Plan, pipeline: Pipeline) -> list[list[str]]:
    """Per stage its layers: the outermost of which no other stage has a part, in order."""
    homes: dict[str, set[int]] = {}
    found: list[dict[str, None]] = [{} for _ in pipeline.coordinates]
    own_ops = [op for op in plan.graph.ops if op.operator != TRANSFER]
    # A cast that mixed precision needs is of the layer that reads it, whatever its name.
    homes_of = (plan.graph.calls[op.within].path if op.within >= 0 else enclosing(op) for op in own_ops)
    chains = [(ancestors(home), pipeline.op_stage[op.id]) for op, home in zip(own_ops, homes_of, strict=True)]
    for chain, at in chains:
        for layer in chain:
            homes.setdefault(layer, set()).add(at)
    for chain, at in chains:
        own = next((layer for layer in chain if homes[layer] == {at}), None)
        found[at].update({own: None} if own else {})
    return [[place for layer in mine for place in places(layer)] for mine in found]


def drawing(pipeline: Pipeline, timeline: lists.Timeline) -> list[str]:
    """A line a coordinate: `F3` is the forward of microbatch 3, `B3` its backward over twice the
    width; where a coordinate runs several stages, `1F3` of stage 1. Dots are time in which it
    waits."""
    several = len(set(pipeline.coordinates)) < len(pipeline.coordinates)
    names = [[lists.text(a) if several else f"{a.kind}{a.microbatch}" for a in line] for line in pipeline.actions]
    width = max((len(n) for line in names for n in line), default=1) + 1
    return [_row(line, spans, timeline.end, width) for line, spans in zip(names, timeline.spans, strict=True)]


def _row(names: Sequence[str], spans: Sequence[tuple[int, int]], end: int, width: int) -> str:
    row = ["." * (width - 1) + " "] * end
    for name, (begin, stop) in zip(names, spans, strict=True):
        row[begin] = name.ljust(width)
        for at in range(begin + 1, stop):
            row[at] = "-" * (width - 1) + " "
        if stop - begin > 1:
            row[begin] = name.ljust(width, "-")
    return "".join(row).rstrip()
