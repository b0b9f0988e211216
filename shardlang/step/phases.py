"""Which steps of a plan with microbatches run when: before the first microbatch, with each, after
the last.

A sum over all microbatches is known once they are through. A value that is made of such sums, and
is the same in every microbatch (it is whole in time), is computed once: from sums of data alone
already before the first microbatch, where the forward reads it; for a metric after the last. Each
of the four functions is then what its results need, back to what it is given: totals, and what
another stage sends. Two functions may compute a value that is the same in every microbatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import field

from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import Kind
from shardlang.plan.plan import Conversion, MoveKind, Plan, Step
from shardlang.plan.reads import Form, final_form, inputs, layout_of, made_form, makes, steps_for


@dataclass(frozen=True)
class Phases:
    """The plan's steps by function; each keeps its order. Sums are numbers of conversions.

    ahead: with every microbatch, before the first forward: the parts of `totals`. known: once, from
    the totals to what forward reads of them (`step_inputs`).
    body: with every microbatch. after: once, from `sums`, and from forms that forward hands on from
    the first microbatch (`handed`), to the metrics of `last`."""

    ahead: tuple[Step, ...] = ()
    totals: tuple[int, ...] = ()
    known: tuple[Step, ...] = ()
    step_inputs: tuple[Form, ...] = ()
    body: tuple[Step, ...] = ()
    sums: tuple[int, ...] = ()
    handed: tuple[Form, ...] = ()
    after: tuple[Step, ...] = ()
    last: frozenset[int] = field(default_factory=frozenset)


def summed_in_time(plan: Plan, conversion: Conversion) -> bool:
    """Whether a conversion sums a value over all microbatches."""
    time, move = plan.meshes[conversion.to.mesh].time, conversion.move
    return time is not None and time.name in move.axes and move.kind in (MoveKind.P_TO_I, MoveKind.P_TO_R)


def phases(
    plan: Plan, ends: Iterable[Form] | None = None, metrics: Iterable[int] | None = None,
    received: Set[Form] = frozenset(),
) -> Phases:  # fmt: skip
    """The phases of a file: with every microbatch it makes `ends`, by default the loss; `metrics`:
    values, by default all. received: what other stages send it."""
    graph = plan.graph
    if ends is None:
        ends = [] if graph.loss is None else [final_form(plan, graph.loss)]
    shown = {value: final_form(plan, value) for value in (graph.metrics.values() if metrics is None else metrics)}
    once, early = _once(plan), _of_data_alone(plan)
    totals = {at for at in once if at[1] >= 0 and summed_in_time(plan, plan.conversions[at[1]])}
    known = {at for at in once if at[0] in early}

    last = frozenset(value for value, at in shown.items() if at in once)
    after, reached = _back(plan, [shown[value] for value in last], totals | received)
    handed = tuple(at for at in reached if at in received)
    sums = tuple(conversion for value, conversion in reached if (value, conversion) in totals)
    every = [*ends, *(at for value, at in shown.items() if value not in last), *_parts(plan, sums), *handed]
    body, reached = _back(plan, every, known | received)
    step_inputs = tuple(dict.fromkeys((value, made_form(plan, at)) for value, at in reached if (value, at) in known))
    before, reached = _back(plan, step_inputs, totals)
    first = tuple(conversion for _, conversion in reached)
    ahead, _ = _back(plan, _parts(plan, first), frozenset())
    return Phases(
        ahead, first, before, step_inputs=step_inputs, body=body, sums=sums, handed=handed, after=after, last=last
    )


@remembered
def _once(plan: Plan) -> set[Form]:
    """The forms that are the same in every microbatch and made of a sum over all of them."""
    found, read = set[Form](), inputs(plan)
    for step in plan.steps if plan.microbatches > 1 else ():
        if step.kind == "conversion" and summed_in_time(plan, plan.conversions[step.index]):
            found.update(makes(plan)[step])
        elif not found.isdisjoint(read[step]):
            found.update(at for at in makes(plan)[step] if _whole_in_time(plan, at))
    return found


def _whole_in_time(plan: Plan, at: Form) -> bool:
    layout = layout_of(plan, at)
    time = plan.meshes[layout.mesh].time
    return time is not None and layout.state(time.name) in "IR"


@remembered
def _of_data_alone(plan: Plan) -> set[int]:
    return plan.graph.made_of(Kind.DATA, Kind.CONSTANT)


def _back(plan: Plan, ends: Sequence[Form], given: Set[Form]) -> tuple[tuple[Step, ...], list[Form]]:
    """The steps from what is given to `ends`, and the given that they read, in the plan's order."""
    steps = tuple(steps_for(plan, ends, given))
    inputs_of = inputs(plan)
    read = [*(at for step in steps for at in inputs_of[step]), *ends] if given else []
    return steps, list(dict.fromkeys(at for at in read if at in given))


def _parts(plan: Plan, sums: Iterable[int]) -> list[Form]:
    """One microbatch's part of each of these sums."""
    return [(plan.conversions[at].value, plan.conversions[at].parent) for at in sums]
