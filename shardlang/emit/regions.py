"""Steps of one function -> steps and regions: what is computed again in backward stands in a function of its own.

A region is a run of the steps of one group of `Plan.recompute`; steps between them that need nothing of it come before
it. Which steps are of a group is in plan/rewrite/recomputed.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from shardlang.emit.given import made_forms, read_forms
from shardlang.graph.graph import Kind
from shardlang.plan.needs import Form
from shardlang.plan.plan import Plan, Step
from shardlang.plan.rewrite.recomputed import Owners
from shardlang.records import dataclass


@dataclass
class Region:
    """Steps of one group, in order; `path`: the layer that they are of."""

    group: int
    path: str
    steps: list[Step] = field(default_factory=list)
    made: set[Form] = field(default_factory=set)


def arranged(plan: Plan, steps: Sequence[Step]) -> list[Step | Region]:
    """The steps in an order that keeps what they read before them, those of regions together."""
    if not plan.recompute:
        return list(steps)
    owners = Owners(plan, frozenset(steps))
    items: list[Step | Region] = []
    open_: Region | None = None
    for step in steps:
        group = owners.of(step)
        if open_ is not None and group != open_.group and _reads(plan, step, open_.made):
            open_ = None
        if group is None:
            items.insert(len(items) - (open_ is not None), step)
            continue
        if open_ is None or group != open_.group:
            open_ = Region(group, _layer(plan, group))
            items.append(open_)
        open_.steps.append(step)
        open_.made.update(made_forms(plan, [step]))
    return items


def _reads(plan: Plan, step: Step, forms: set[Form]) -> bool:
    return any(at in forms for at in read_forms(plan, step))


def inputs_of(plan: Plan, region: Region) -> list[Form]:
    """What a region reads of what is made outside of it, in the order of its steps; parameters are there anyway."""
    leaves = (Kind.PARAM, Kind.STATE, Kind.CONSTANT)
    read = [at for step in region.steps for at in read_forms(plan, step) if at not in region.made]
    values = plan.graph.values
    return [at for at in dict.fromkeys(read) if at[1] >= 0 or values[at[0]].kind not in leaves]


def outputs_of(plan: Plan, region: Region, steps: Iterable[Step], ends: Iterable[Form]) -> list[Form]:
    """What a region makes that other steps read, or that are `ends`."""
    inside = set(region.steps)
    read = {at for step in steps if step not in inside for at in read_forms(plan, step)} | set(ends)
    made = [at for step in region.steps for at in made_forms(plan, [step])]
    return [at for at in dict.fromkeys(made) if at in read]


def _layer(plan: Plan, group: int) -> str:
    """The path that all operators of a group have in common; that of the value, where it is one."""
    paths = [plan.graph.ops[op].path.partition(":")[0].split(".") for op in plan.recompute[group]]
    common = paths[0][:-1] if len(paths) > 1 else paths[0]
    for path in paths:
        while common != path[: len(common)]:
            common = common[:-1]
    return ".".join(common) or ".".join(paths[0])
