"""What of a plan with microbatches runs once a step: the forms that `forward` is given, the sums that metrics need.

Which steps these are is phases.py's; their text is in once.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.emit.names import Form, made_form
from shardlang.emit.needs import final_form, form
from shardlang.plan.phases import Phases, summed_in_time
from shardlang.plan.plan import Plan, Step


def given_forms(plan: Plan, found: Phases) -> list[Form]:
    """The forms, known before the first microbatch, that steps of each microbatch read, in the plan's order."""
    known = made_forms(plan, found.known)
    read = {at for step in found.body for at in read_forms(plan, step)}
    return list(dict.fromkeys(at for at in known if at in read))


def made_forms(plan: Plan, steps: Sequence[Step]) -> list[Form]:
    """The forms that lines of their own make."""
    made: list[Form] = []
    for step in steps:
        if step.kind == "op":
            made.extend((value, -1) for value in plan.graph.ops[plan.ops[step.index].op].results)
        else:
            made.append((plan.conversions[step.index].value, made_form(plan, step.index)))
    return made


def read_forms(plan: Plan, step: Step) -> list[Form]:
    """The forms that a step reads, a VIEW as what it is a view of."""
    if step.kind == "op":
        uses = [form(use) for use in plan.ops[step.index].operands]
    else:
        conversion = plan.conversions[step.index]
        uses = [(conversion.value, conversion.parent)]
    return [(value, made_form(plan, at)) for value, at in uses]


def concluded(plan: Plan, found: Phases, value: int) -> bool:
    """Whether a metric is made of totals, once the last microbatch is through."""
    return final_form(plan, value) in made_forms(plan, found.after)


def time_sums(plan: Plan, steps: Sequence[Step]) -> list[int]:
    """The conversions among `steps` that sum over the microbatches."""
    return [
        step.index for step in steps if step.kind == "conversion" and summed_in_time(plan, plan.conversions[step.index])
    ]


def sum_names(plan: Plan, steps: Sequence[Step], names: Mapping[Form, str]) -> dict[str, str]:
    """The name of each sum over the microbatches that `steps` begin with -> the name of one microbatch's part of it."""
    sums = [plan.conversions[at] for at in time_sums(plan, steps)]
    return {names[c.value, c.id]: names[c.value, c.parent] for c in sums}
