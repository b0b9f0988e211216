"""Which steps of a plan some forms of values need, and what each step reads and makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from shardlang.frozen.records import remembered
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import MoveKind, OperandUse, Plan, PlannedOp, Step
from shardlang.types.layout import Layout

Form = tuple[int, int]  # value id, conversion id (-1: as produced)


def steps_for(plan: Plan, forms: Iterable[Form], given: Set[Form] = frozenset()) -> list[Step]:
    """The steps that make `forms`, in order; those in `given` are taken as there already."""
    made_by, steps, read, found = _places(plan), plan.steps, inputs(plan), set[int]()
    open_forms = list(forms)
    while open_forms:
        at = open_forms.pop()
        place = made_by.get(at)
        if place is not None and place not in found and at not in given:
            found.add(place)
            open_forms += read[steps[place]]
    return [steps[place] for place in sorted(found)]


@remembered
def _places(plan: Plan) -> Mapping[Form, int]:
    """Form -> the place of the step that makes it."""
    return {form: place for place, forms in enumerate(makes(plan).values()) for form in forms}


@remembered
def inputs(plan: Plan) -> Mapping[Step, Sequence[Form]]:
    """Step -> the forms that it reads."""
    ops, conversions = plan.ops, plan.conversions
    one = {form: form for forms in makes(plan).values() for form in forms}.setdefault
    return {
        step: [one(at, at) for at in [(use.value, use.conversion) for use in ops[step.index].operands]]
        if step.kind == "op"
        else [one(at, at) for at in [(conversions[step.index].value, conversions[step.index].parent)]]
        for step in plan.steps
    }


@remembered
def makers(plan: Plan) -> Mapping[int, int]:
    """Value -> index into `Plan.ops` of what computes it."""
    return {value: at for at, op in enumerate(plan.ops) for value in plan.graph.ops[op.op].results}


@remembered
def makes(plan: Plan) -> Mapping[Step, Sequence[Form]]:
    """Step -> the forms that it makes."""
    ops = plan.graph.ops
    return {
        step: tuple([(value, -1) for value in ops[plan.ops[step.index].op].results])
        if step.kind == "op"
        else ((plan.conversions[step.index].value, step.index),)
        for step in plan.steps
    }


@remembered
def transfers(plan: Plan) -> Sequence[PlannedOp]:
    """The operators that hand values from stage to stage."""
    return [op for op in plan.ops if plan.graph.ops[op.op].operator == TRANSFER] if plan.pipeline is not None else []


def made_form(plan: Plan, conversion: int) -> int:
    """The form that a line makes: what a VIEW is a view of."""
    while conversion >= 0 and plan.conversions[conversion].move.kind is MoveKind.VIEW:
        conversion = plan.conversions[conversion].parent
    return conversion


def layout_of(plan: Plan, at: Form) -> Layout:
    """The layout of a form."""
    value, conversion = at
    return plan.produced[value] if conversion < 0 else plan.conversions[conversion].to


def left_pending(plan: Plan, value: int) -> tuple[str, ...]:
    """The axes over which the runtime sums a loss or metric. It knows those of the first mesh
    alone, and that of the microbatches: a number pending over others is summed by the emitted
    program, see `summed_first`."""
    return runtime_axes(plan, layout_of(plan, final_form(plan, value)))


def runtime_axes(plan: Plan, layout: Layout) -> tuple[str, ...]:
    """Those of a number's pending axes that the runtime sums over."""
    ranked = plan.meshes[layout.mesh].ranked(layout.pending)
    return tuple(axis for axis in layout.pending if axis not in ranked) if layout.mesh else layout.pending


def summed_first(plan: Plan, value: int) -> tuple[str, ...]:
    """The axes of a further mesh over which the emitted program itself sums a loss or metric."""
    layout = layout_of(plan, final_form(plan, value))
    return plan.meshes[layout.mesh].ranked(layout.pending) if layout.mesh else ()


def form(use: OperandUse) -> Form:
    return use.value, use.conversion


def final_form(plan: Plan, value: int) -> Form:
    """The form of a loss or metric that the program returns: its last, which no operator reads."""
    return value, _ends(plan).get(value, -1)


@remembered
def _ends(plan: Plan) -> Mapping[int, int]:
    """Value -> its last conversion that neither an operator nor a conversion reads, if any."""
    read = {use.conversion for op in plan.ops for use in op.operands} | {c.parent for c in plan.conversions}
    return {c.value: c.id for c in plan.conversions if c.id not in read}
