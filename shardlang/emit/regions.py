"""Steps of one function -> steps and regions: what is computed again in backward stands in a function of its own.

A region is a run of the steps of one group of `Plan.recompute`; steps between them that need nothing of it come before
it. A conversion at a group's border stands on the side that leaves the smaller form to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shardlang.emit.given import made_forms, read_forms
from shardlang.emit.names import Form
from shardlang.emit.needs import layout_of
from shardlang.graph.graph import Kind
from shardlang.plan.plan import Conversion, Plan, Step
from shardlang.types.layout import local_shape


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
    owners = _Owners(plan, frozenset(steps))
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


@dataclass(frozen=True)
class _Owners:
    """Which group each step of a function is of."""

    plan: Plan
    steps: frozenset[Step]

    @cached_property
    def _groups(self) -> dict[int, int]:
        """Operator (id) -> group."""
        return {op: number for number, ops in enumerate(self.plan.recompute) for op in ops}

    @cached_property
    def _producers(self) -> dict[int, int]:
        """Value -> index into `Plan.ops`."""
        return {v: at for at, p in enumerate(self.plan.ops) for v in self.plan.graph.ops[p.op].results}

    @cached_property
    def _readers(self) -> dict[int, set[int | None]]:
        """Conversion -> the groups of the operators that read it or what is made of it; None: of no group."""
        readers: dict[int, set[int | None]] = {}
        for step in self.steps:
            if step.kind == "op":
                planned = self.plan.ops[step.index]
                for use in planned.operands:
                    at = use.conversion
                    while at >= 0:
                        readers.setdefault(at, set()).add(self._groups.get(planned.op))
                        at = self.plan.conversions[at].parent
        return readers

    @cached_property
    def _sides(self) -> dict[int, int | None]:
        """Conversion -> its group; parents come before what is made of them."""
        sides: dict[int, int | None] = {}
        for c in sorted(
            (self.plan.conversions[s.index] for s in self.steps if s.kind == "conversion"), key=self._depth
        ):
            sides[c.id] = self._side(c, sides)
        return sides

    def _depth(self, conversion: Conversion) -> int:
        """How many conversions lead to it."""
        return 0 if conversion.parent < 0 else 1 + self._depth(self.plan.conversions[conversion.parent])

    def _side(self, c: Conversion, sides: dict[int, int | None]) -> int | None:
        readers = self._readers.get(c.id, {None})
        later = next(iter(readers)) if len(readers) == 1 else None
        producer = self._producers.get(c.value)
        made = self._groups.get(self.plan.ops[producer].op) if producer is not None else None
        earlier = made if c.parent < 0 else sides.get(c.parent)
        if self.plan.graph.values[c.value].kind in (Kind.PARAM, Kind.STATE):
            return later
        grows = self._elements((c.value, c.id)) > self._elements((c.value, c.parent))
        if earlier == later or (grows and later is not None) or earlier != made:
            return later
        return earlier

    def _elements(self, at: Form) -> int:
        layout = layout_of(self.plan, at)
        return math.prod(local_shape(self.plan.graph.values[at[0]].type, layout, self.plan.meshes[layout.mesh]))

    def of(self, step: Step) -> int | None:
        """The group of a step; None where it is of none."""
        if step.kind == "op":
            return self._groups.get(self.plan.ops[step.index].op)
        return self._sides[step.index]
