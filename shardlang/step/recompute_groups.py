"""Finds the recompute group of each step; None if its activations are saved.

An operator is of the group that has it; a conversion at a group's border stands
on the side that leaves the smaller form to be kept."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import cached_property

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.plan.plan import Conversion, MoveKind, Plan, Recomputed, Step
from shardlang.plan.reads import Form, layout_of
from shardlang.types.layout import local_shape

_GATHERS = (MoveKind.S_TO_R, MoveKind.S_TO_I)


@dataclass(frozen=True)
class RecomputeGroups:
    """Which of `groups` each step of a function is of."""

    plan: Plan
    steps: Sequence[Step]
    groups: Sequence[Recomputed]

    @cached_property
    def _groups(self) -> dict[int, int]:
        """Operator (id) -> group."""
        return {op: number for number, group in enumerate(self.groups) for op in group.ops}

    @cached_property
    def _calls(self) -> dict[int, int]:
        """Operator (id) -> the group that drops what is gathered for its call."""
        return {op: number for number, group in enumerate(self.groups) if group.drops for op in group.call}

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        """Conversion -> the operators (ids) that read it or its results."""
        readers: dict[int, set[int]] = {}
        for step in self.steps:
            if step.kind == "op":
                planned = self.plan.ops[step.index]
                for use in planned.operands:
                    at = use.conversion
                    while at >= 0:
                        readers.setdefault(at, set()).add(planned.op)
                        at = self.plan.conversions[at].parent
        return readers

    @cached_property
    def _sides(self) -> dict[int, int | None]:
        """Conversion -> its group; parents come before what is made of them."""
        sides: dict[int, int | None] = {}
        mine = (self.plan.conversions[s.index] for s in self.steps if s.kind == "conversion")
        for c in sorted(mine, key=self._depth):
            sides[c.id] = self._side(c, sides)
        return sides

    def _depth(self, conversion: Conversion) -> int:
        """How many conversions lead to it."""
        return 0 if conversion.parent < 0 else 1 + self._depth(self.plan.conversions[conversion.parent])

    def _side(self, c: Conversion, sides: dict[int, int | None]) -> int | None:
        readers = self.readers(c.id)
        if (dropped := self._dropped(c, readers)) is not None:
            return dropped
        groups = {self._groups.get(op) for op in readers}
        later = next(iter(groups)) if len(groups) == 1 else None
        producer = self.plan.graph.producers.get(c.value)
        made = self._groups.get(producer) if producer is not None else None
        earlier = made if c.parent < 0 else sides.get(c.parent)
        if self.plan.graph.values[c.value].kind in (Kind.PARAM, Kind.STATE):
            return later
        before, after = self._elements((c.value, c.parent)), self._elements((c.value, c.id))
        grows = after > before or (after == before and not c.move.forward_bytes)
        if earlier == later or (grows and later is not None) or earlier != made:
            return later
        return earlier

    def _dropped(self, c: Conversion, readers: Set[int]) -> int | None:
        """The group of a value that is gathered for operators of one call alone, and dropped."""
        calls = {self._calls.get(op) for op in readers}
        if c.move.kind not in _GATHERS or self.plan.graph.values[c.value].kind is not Kind.RESULT or len(calls) != 1:
            return None
        return calls.pop()

    def _elements(self, at: Form) -> int:
        layout = layout_of(self.plan, at)
        return math.prod(local_shape(self.plan.graph.values[at[0]].type, layout, self.plan.meshes[layout.mesh]))

    def drops(self, group: int | None) -> bool:
        """Whether what the steps of a group make is not kept."""
        return group is not None and self.groups[group].drops

    def to_host(self, group: int | None) -> bool:
        """Whether what the operators of a group save waits in the host's memory."""
        return group is not None and self.groups[group].to_host

    def again(self, group: int | None) -> bool:
        """Whether backward computes a group again."""
        return group is not None and not self.groups[group].to_host

    def readers(self, conversion: int) -> Set[int]:
        """The operators (ids) that read a conversion, or what it is converted to."""
        return self._readers.get(conversion, set())

    def group(self, op: int) -> int | None:
        """The group of an operator (id); None where it is of none."""
        return self._groups.get(op)

    def of(self, step: Step) -> int | None:
        """The group of a step; None where it is of none."""
        if not self.groups:
            return None
        if step.kind == "op":
            return self._groups.get(self.plan.ops[step.index].op)
        return self._sides[step.index]
