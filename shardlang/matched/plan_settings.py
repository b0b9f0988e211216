"""A plan -> what its text must declare for the runtime to communicate by: parameters' sums and
rows, gathers of ZeRO 3, messages between stages, the schedule, sums of figures.

Each is told as lines, as the lines of functions are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.emit.evaluate import evaluated_values
from shardlang.emit.scope import FileContents
from shardlang.facts.actions import ACTIONS, FORWARD
from shardlang.matched.lines import ActionRow, AxisGroup, Items, Line, gather_line, gradient_lines, message, setting
from shardlang.matched.planned import Planned
from shardlang.paths.patterns import places
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.plan.reads import layout_of, left_pending
from shardlang.sources.source import Span
from shardlang.step.zero3_gathers import orders
from shardlang.types.layout import identical


def parameters(planned: Planned) -> Mapping[str, Items]:
    """Path -> lines of a parameter; equal ones are one object."""
    plan, made, found = planned.plan, dict[object, Items](), dict[str, Items]()
    for value in (plan.graph.values[value] for value in plan.graph.params):
        param = plan.params.get(value.id) or ParamPlan(value.id, identical(len(value.type.dims)), ())
        learns, sizes = not plan.graph.frozen(value.id), value.type.dims if plan.sizes else value.type.shape
        how = id(param.stored), param.reduce_axes, param.zero, param.zero_axes, param.keep, param.sparse
        key = value.type.dtype, sizes, learns, *how
        if key not in made:
            made[key] = _parameter(planned, param, learns, value.span)
        found.update(dict.fromkeys(places(value.path), made[key]))
    return found


def _parameter(planned: Planned, param: ParamPlan, learns: bool, span: Span) -> Items:
    plan, number = planned.plan, param.stored.mesh
    mesh = plan.meshes[number]
    once = mesh.time is not None and mesh.time.name not in param.reduce_axes
    how = "no" if not learns else "rows" if param.sparse else "once" if once else ""
    summed, rows = AxisGroup(number, mesh.ranked(param.reduce_axes)), AxisGroup(number, param.zero_axes)
    local = planned.local(param.value, param.stored)
    return gradient_lines(how, summed, local, (param.zero, rows), keep=param.keep, span=span)


def gathers(plan: Plan, stage: int) -> Items:
    """The gathers of ZeRO 3 in the passes of a stage, in order."""
    found = orders(plan)
    kinds = {action.kind for row in plan.actions for action in row if action.stage == stage} if found.cut else set()
    units = [(kind, unit) for kind in ACTIONS if kind in kinds for unit in found.passes.get((kind, stage), [])]
    lines = list[Line]()
    for kind, unit in units:
        if mine := {value for value in unit.params if stage in plan.stages_of(value)}:
            span, below = plan.graph.values[min(mine)].span, [found.cut[value][len(unit.layer) :] for value in mine]
            layers = places(unit.layer)
            for layer in layers if kind == FORWARD else reversed(layers):
                lines.append(gather_line(kind, [place for path in below for place in places(layer + path)], span))
    return tuple(lines)


def messages(planned: Planned, at: int) -> Items:
    """The values that a stage receives, then those that it sends on."""
    emission = planned.emission
    scope = emission.forwards[at].scope
    evaluated = evaluated_values(scope, emission.evaluated) if emission.evaluated is not None else scope.received
    return (
        *(_message(planned, scope, "receive", (v, -1), v in evaluated) for v in scope.received),
        *(_message(planned, scope, "send", form, True) for form in scope.sent),
    )


def _message(planned: Planned, scope: FileContents, way: str, form: tuple[int, int], evaluated: bool) -> Line:
    plan, value = planned.plan, planned.plan.graph.values[form[0]]
    return message(
        way, scope.names[form], planned.local(value.id, layout_of(plan, form)), over=planned.stages, span=value.span,
        evaluated=evaluated, gradient=way == "receive" and value.gradient,
    )  # fmt: skip


def schedule(planned: Planned) -> Sequence[ActionRow]:
    """The actions of each coordinate."""
    pipeline, graph = planned.plan.pipeline, planned.plan.graph
    rows, span = pipeline.actions if pipeline is not None else (), graph.values[graph.loss or 0].span
    return [ActionRow(tuple(row), span) for row in rows]


def figures(planned: Planned) -> Items:
    """The sums over all ranks that the runtime makes, and what decides its buckets."""
    plan, training, values = planned.plan, planned.plan.program.training, planned.plan.graph.values
    assert training is not None and plan.graph.loss is not None
    shown, loss = {"loss": plan.graph.loss, **plan.graph.metrics}, values[plan.graph.loss].span
    found = [setting(f"the sum of `{name}`", values[v].span, left_pending(plan, v)) for name, v in shown.items()]
    evaluated = planned.emission.evaluated
    for total in evaluated.accumulators.values() if evaluated is not None else ():
        if not total.joined:
            what = f"the sum of `{total.name}` of an evaluation"
            found.append(setting(what, values[total.value].span, total.left_pending))
    found.append(setting(f"buckets of {plan.bucket_bytes} bytes", loss))
    found += [setting("the norm of all gradients", loss)] if training.measured else []
    every = training.checkpoint[1]["steps"] if training.checkpoint else 0
    return *found, *([setting(f"a checkpoint every {every} steps", loss)] if every else [])
