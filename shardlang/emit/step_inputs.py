"""A plan with microbatches -> what its functions hand each other: forms that are read, sums and
their parts.

step/phases.py says which steps a function has; once.py writes those that run once a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardlang.emit.text.sizes import Groups
from shardlang.plan.plan import MoveKind, Plan, Step
from shardlang.plan.reads import Form, layout_of, made_form, makes
from shardlang.step.phases import Phases, summed_in_time


def made_forms(plan: Plan, steps: Iterable[Step]) -> list[Form]:
    """The forms that lines of their own make."""
    return [(value, made_form(plan, at)) for step in steps for value, at in makes(plan)[step]]


def apart(plan: Plan, found: Phases) -> frozenset[int]:
    """The sums over the microbatches that `forward` is given beside their parts."""
    totals = [plan.conversions[at] for _, at in found.step_inputs if at >= 0]
    made = set(made_forms(plan, found.body)) if totals else set()
    return frozenset(c.id for c in totals if summed_in_time(plan, c) and (c.value, made_form(plan, c.parent)) in made)


def sum_names(plan: Plan, sums: Iterable[int], names: Mapping[Form, str]) -> dict[str, str]:
    """The name of each of these sums over the microbatches -> that of one microbatch's part."""
    found = [plan.conversions[at] for at in sums]
    return {names[c.value, c.id]: names[c.value, c.parent] for c in found}


def handed_names(plan: Plan, handed: Iterable[Form], names: Mapping[Form, str], groups: Groups) -> dict[str, str]:
    """The values that forward passes on, as parts of a sum: the value in the first microbatch,
    nothing in the others."""
    found = {}
    for at in handed:
        mesh = layout_of(plan, at).mesh
        time = plan.meshes[mesh].time
        assert time is not None
        found[names[at]] = f"rt.{MoveKind.I_TO_P.value}({names[at]}, {groups.text((time.name,), mesh)})"
    return found
