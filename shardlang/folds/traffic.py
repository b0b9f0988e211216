"""Bytes that each rank sends in one step of a plan: conversions, statistics, gradients, and values
from stage to stage.

The bytes of a microbatch count once for each of them. Times are not estimated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from shardlang.frozen.records import dataclass, remembered
from shardlang.ops.families.internal import TO_DEVICE, TO_HOST
from shardlang.plan.plan import Conversion, ParamPlan, Plan, PlannedOp, Step
from shardlang.step.gradient_sums import gradient_sums, summed_bytes
from shardlang.step.messages import handed
from shardlang.step.own_optimizers import gathered
from shardlang.step.parameters import part_bytes
from shardlang.step.passes import computed_again
from shardlang.step.phases import phases
from shardlang.step.saved_activations import saved_activations
from shardlang.step.stages import conversion_stages, stages_by_coordinate
from shardlang.step.zero3_gathers import orders


def sent_bytes(plan: Plan, stages: Collection[int] | None = None) -> tuple[int, int]:
    """Bytes each rank sends in one step, forward and backward (deferred reductions of gradients
    count as backward): of `stages`, by default of the coordinate that sends most."""
    if stages is None:
        return max((sent_bytes(plan, mine) for mine in stages_by_coordinate(plan)), key=sum)
    found = [both for at, both in _sent(plan).items() if not at.isdisjoint(stages)]
    return sum(forward for forward, _ in found), sum(backward for _, backward in found)


@remembered
def _sent(plan: Plan) -> Mapping[frozenset[int], tuple[int, int]]:
    """Stages -> what they send together, forward and backward."""
    found: dict[frozenset[int], tuple[int, int]] = {}
    for each in sent(plan):
        before = found.get(each.stages, (0, 0))
        found[each.stages] = before[0] + each.forward_bytes, before[1] + each.backward_bytes
    return found


@dataclass(frozen=True, slots=True)
class Sent:
    """Something that is sent in a step by ranks of `stages`: of the value or parameter at `path`,
    forward and backward by a collective each ("" for none), over axes. what: "values", "gradients"
    (sums of parameters' gradients) or "parameters" (that ZeRO has cut)."""

    what: str
    path: str
    stages: frozenset[int]
    axes: tuple[str, ...]
    collectives: tuple[str, str]
    forward_bytes: int
    backward_bytes: int


@remembered
def sent(plan: Plan) -> tuple[Sent, ...]:
    """Everything that is sent in a step."""
    return *_sent_values(plan), *_sent_parameters(plan)


def _sent_values(plan: Plan) -> Iterator[Sent]:
    here = conversion_stages(plan)
    for c, (forward, backward) in zip(plan.conversions, conversion_bytes(plan), strict=True):
        axes, by = plan.meshes[c.to.mesh].ranked(c.move.axes), c.move.kind.collectives
        value, stages = plan.graph.values[c.value], frozenset(here[c.id])
        path, forward, backward = value.path, forward * value.times, backward * value.times
        again = forward if Step("conversion", c.id) in computed_again(plan) else 0
        yield Sent("values", path, stages, axes, by, forward, backward - again)
        if again:
            yield Sent("values", path, stages, axes, ("", by[0]), 0, again)
    for planned in plan.ops:
        op = plan.graph.ops[planned.op]
        for factor, axes, forward, backward in planned.inside:
            kind, times = op.rule.factors[factor].collective, plan.graph.times(op)
            forward, backward = forward * times, backward * times
            twice = forward if Step("op", op.id) in computed_again(plan) else 0
            stages = frozenset((plan.stage(op.id),))
            yield Sent("values", op.path, stages, axes, (kind, kind), forward, backward + twice)
        to, (forward, backward) = plan.stage(op.id), handed_bytes(plan, planned)
        if plan.pipeline is not None and forward:
            axes = (plan.pipeline.axis,)
            yield Sent("values", op.path, frozenset((to - 1,)), axes, ("send", ""), forward, 0)
            yield Sent("values", op.path, frozenset((to,)), axes, ("", "send"), 0, backward)


def _sent_parameters(plan: Plan) -> Iterator[Sent]:
    for param in plan.params.values():
        value, mesh = plan.graph.values[param.value], plan.meshes[param.stored.mesh]
        path, times = value.path, value.times
        stages = frozenset(plan.stages_of(param.value))
        for here, (forward, backward) in gather_bytes(plan, param, stages).items():
            again = ("all_gather", "all_gather" if backward else "")
            yield Sent("parameters", path, here, mesh.ranked(param.zero_axes), again, forward, backward)
        if (own := gathered(plan).get(param.value)) is not None:
            yield Sent("parameters", path, stages, own.axes, ("all_gather", ""), own.sent * times, 0)
        for each in gradient_sums(plan)[param.value]:
            for here, size in summed_bytes(plan, param.value, each).items():
                yield Sent("gradients", path, here, each.axes, ("", each.collective), 0, size * times)


@remembered
def conversion_bytes(plan: Plan) -> list[tuple[int, int]]:
    """Per conversion what it sends in a step, forward and backward: what runs once is not counted
    with every part, and what is taken ahead of the forward is counted there too. Backward
    has what it takes again."""
    found = _in_time(plan)
    again = (Step("conversion", c.id) in computed_again(plan) for c in plan.conversions)
    return [(forward, backward + forward * twice) for (forward, backward), twice in zip(found, again, strict=True)]


def _in_time(plan: Plan) -> list[tuple[int, int]]:
    """The bytes of conversions in all microbatches."""
    found = phases(plan)
    runs = Counter({c.id: 0 for c in plan.conversions})
    each, once = plan.microbatches, 1
    for steps, times in ((found.ahead, each), (found.known, once), (found.body, each), (found.after, once)):
        runs.update({step.index: times for step in steps if step.kind == "conversion"})
    moves = ((c.move, runs[c.id]) for c in plan.conversions)
    return [(move.forward_bytes * n // each, move.backward_bytes * n // each) for move, n in moves]


def sends(plan: Plan, conversion: Conversion) -> bool:
    """Whether a conversion is more than a step in time."""
    mesh = plan.meshes[conversion.to.mesh]
    return not conversion.move.axes or bool(mesh.ranked(conversion.move.axes))


def handed_bytes(plan: Plan, planned: PlannedOp) -> tuple[int, int]:
    """Bytes of a value that an operator sends to the next stage on another rank, and of its
    gradient."""
    there, back = handed(plan).get(planned.op, (0, 0)) if plan.crosses(plan.stage(planned.op)) else (0, 0)
    return there * plan.microbatches, back * plan.microbatches


def copied_bytes(plan: Plan, stages: Collection[int] = (0,)) -> tuple[int, int]:
    """Bytes that a rank of `stages` copies in a step to the device and to the host: values,
    gradients, and what is saved on the host."""
    found = {TO_DEVICE: 0, TO_HOST: 0}
    for planned in plan.ops:
        op = plan.graph.ops[planned.op]
        if op.operator in found and plan.stage(op.id) in stages:
            there, back = (size * plan.graph.times(op) for size in copy_bytes(plan, planned))
            found[op.operator] += there
            found[TO_HOST if op.operator == TO_DEVICE else TO_DEVICE] += back
    on_host = saved_activations(plan).on_host
    saved = sum(map(on_host, stages)) * plan.microbatches
    return found[TO_DEVICE] + saved, found[TO_HOST] + saved


def copy_bytes(plan: Plan, planned: PlannedOp) -> tuple[int, int]:
    """Bytes of one copy between host and device, in a step: forward, and its gradient backward."""
    value = plan.graph.values[plan.graph.ops[planned.op].results[0]]
    size = plan.local_bytes(value.id, planned.results[0]) * plan.microbatches
    return size, size if value.gradient else 0


def gather_bytes(
    plan: Plan, param: ParamPlan, stages: frozenset[int]
) -> Mapping[frozenset[int], tuple[int, int]]:  # fmt: skip
    """Those of `stages` that a rank runs -> bytes that it sends in a step so that others have a
    parameter whole, in all layers of a run, in the type that they read, forward and backward: under
    ZeRO 1 and 2 once, after the update, and once under 3 if it keeps them; else under 3 in each
    microbatch, wherever it is used."""
    if not param.zero:
        return {}
    each = (plan.meshes[param.stored.mesh].degree(param.zero_axes) - 1) * part_bytes(plan, param)
    if param.zero < 3 or param.keep:
        return {stages: (each * plan.graph.values[param.value].times, 0)}
    steps = ((stages.intersection(mine), step) for mine, step in orders(plan).steps.items())
    return {here: (s.forward[param.value] * each, s.backward[param.value] * each) for here, s in steps if here}
