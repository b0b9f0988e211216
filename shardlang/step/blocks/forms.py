"""The forms that lines of a program read and make: views and sums over time are no lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.plan.plan import MoveKind, Plan, Step
from shardlang.plan.reads import Form, inputs
from shardlang.step.phases import summed_in_time


@dataclass
class Forms:
    """given: forms that are there before. standing: forms that others stand for, as the operand of
    a dropout does for its result where there is none."""

    plan: Plan
    given: Set[Form] = frozenset()
    standing: Mapping[Form, Form] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inputs = inputs(self.plan)
        self.known: dict[Step, Sequence[Form]] = {}

    def silent(self, step: Step) -> bool:
        """Whether a step is no line: its form is called as what it converts."""
        if step.kind == "op":
            return False
        conversion = self.plan.conversions[step.index]
        if conversion.move.kind is MoveKind.VIEW:
            return True
        return summed_in_time(self.plan, conversion) and (conversion.value, step.index) not in self.given

    def form(self, value: int, at: int) -> Form:
        """The form that is read for one."""
        while (at >= 0 or self.standing) and (value, at) not in self.given:
            if (value, at) in self.standing:
                value, at = self.standing[value, at]
            elif at >= 0 and self.silent(Step("conversion", at)):
                at = self.plan.conversions[at].parent
            else:
                break
        return value, at

    def reads(self, step: Step) -> Sequence[Form]:
        known = self.known.get(step)
        if known is None:
            found = self.inputs[step]
            plain = not self.standing and all([at[1] < 0 for at in found])
            known = self.known[step] = found if plain else [self.form(*at) for at in found]
        return known
