"""A plan -> the steps of each stage in the order of forward, and in which units backward computes
them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import MoveKind, Plan, Step
from shardlang.plan.reads import Form, inputs, made_form, makes
from shardlang.step.functions import Chain, Functions
from shardlang.step.saved_activations import fused, saved_activations


class PassWay(Enum):
    """FORWARD; AGAIN: forward within backward; FROM_HOST: nothing is computed, the memories that a
    unit has saved come back; BACK: the gradients of the forms that a step reads."""

    FORWARD, AGAIN, FROM_HOST, BACK = "forward", "again", "from host", "backward"


class PassWork(NamedTuple):
    """A work of a pass. steps: their numbers in the stage, ascending; of BACK one. unit: that
    is computed again, or comes from the host. begun: the steps of the call that follows in a unit,
    where torch ends before it is computed: what it reads is there, and it makes nothing."""

    way: PassWay
    steps: tuple[int, ...]
    unit: int = -1
    begun: tuple[int, ...] = ()


class StageSteps:
    """The steps of a stage in the order of forward: what is received is there before, metrics come
    after the loss."""

    def __init__(self, plan: Plan, stage: int, steps: Sequence[Step]) -> None:
        self.plan, self.stage = plan, stage
        self.steps = sorted(steps, key=lambda step: 2 * (not for_loss(plan, step)) - received(plan, step))
        self.facts = saved_activations(plan)

    @cached_property
    def functions(self) -> Functions:
        return Functions(self.plan, [step for step in self.steps if not received(self.plan, step)])

    @cached_property
    def chains(self) -> Sequence[Chain]:
        """The functions around each step, with the one that computes a group which drops what it
        makes."""
        owners, around = self.facts.owners, self.functions.chains
        groups = [owners.of(step) for step in self.steps]
        found = zip(self.steps, groups, strict=True)
        return [(*around.get(s, ()), *([-1 - g] if g is not None and owners.drops(g) else ())) for s, g in found]

    def takes(self, step: Step) -> bool:
        """Whether a gradient goes through a step."""
        values = self.plan.graph.values
        return for_loss(self.plan, step) and any(values[value].gradient for value, _ in makes(self.plan)[step])

    def reads(self, step: Step) -> Sequence[Any]:
        """The memories that a step keeps for backward."""
        return self.facts.reads.get(self.plan.ops[step.index].op, ()) if step.kind == "op" else ()


class Units:
    """The steps that backward computes again in one go, by unit: a recompute group, or of one that
    drops what it makes each run of its steps in a function (emit/recomputed_regions.py).

    of: the number of a step -> its unit. steps: unit -> numbers. to_host: group that is not
    computed again, but saved on the host -> its unit."""

    def __init__(self, of: StageSteps) -> None:
        self.among = of
        self.of: dict[int, int] = {}
        self.steps: dict[int, list[int]] = {}
        self.to_host: dict[int, int] = {}
        plan, owners = of.plan, of.facts.owners
        open_: dict[tuple[int | None, Chain], tuple[int, set[Form]]] = {}
        for at, step in enumerate(of.steps) if owners.groups else ():
            group, read = owners.of(step), inputs(plan)[step]
            key = (group, of.chains[at] if owners.drops(group) else ())
            for other in [o for o, (_, made) in open_.items() if o != key and not made.isdisjoint(read)]:
                if owners.drops(other[0]):
                    del open_[other]
            if group is not None:
                unit, made = open_.setdefault(key, (len(self.steps), set()))
                made.update(makes(plan)[step])
                self.of[at] = unit
                self.steps.setdefault(unit, []).append(at)
                if owners.to_host(group):
                    self.to_host[group] = unit

    @cached_property
    def again(self) -> Sequence[int]:
        """The units that are computed again."""
        return [unit for unit in self.steps if unit not in self.to_host.values()]

    def run_again(self, unit: int) -> PassWork:
        """The work of computing a unit again."""
        facts, steps = self.among.facts, self.among.steps
        numbers = [at for at in self.steps[unit] if facts.runs_again(steps[at])]
        drops = not numbers or facts.owners.drops(facts.owners.of(steps[numbers[-1]]))
        if drops or not self._stops_before(steps[numbers[-1]]):
            return PassWork(PassWay.AGAIN, tuple(numbers), unit)
        last = steps[numbers.pop()]
        call = {last, Step("op", fused(self.among.plan).get(last.index, -1))}
        begun = tuple([at for at in self.steps[unit] if steps[at] in call])
        return PassWork(PassWay.AGAIN, tuple(numbers), unit, begun)

    def _stops_before(self, step: Step) -> bool:
        """Whether torch ends before a step that is the last to save anything, since it saves only
        what it reads: that comes before it is computed, but in functions of the runtime, which
        those are that send."""
        plan, op = self.among.plan, self.among.plan.ops[step.index]
        return not op.inside and {("made by", op.op), *makes(plan)[step]}.isdisjoint(self.among.reads(step))

    def given(self, unit: int) -> Iterator[Any]:
        """The memories that a unit reads of others."""
        plan, steps = self.among.plan, [self.among.steps[at] for at in self.steps[unit]]
        own = {form for step in steps for form in makes(plan)[step]}
        roots = (self.among.facts.memory(form) for step in steps for form in inputs(plan)[step])
        yield from (root for root in roots if root not in own)


def received(plan: Plan, step: Step) -> bool:
    """Whether a step takes a value from another stage."""
    return step.kind == "op" and plan.graph.ops[plan.ops[step.index].op].operator == TRANSFER


def for_loss(plan: Plan, step: Step) -> bool:
    """Whether the loss needs a step; else only metrics do."""
    if step.kind == "op":
        return plan.graph.ops[plan.ops[step.index].op].section == "loss"
    conversion = plan.conversions[step.index]
    return conversion.gradient or not plan.graph.values[conversion.value].gradient


def parameters_read(plan: Plan, step: Step) -> Sequence[int]:
    """The parameters that a line reads; a view is no line."""
    if step.kind == "conversion" and plan.conversions[step.index].move.kind is MoveKind.VIEW:
        return ()
    forms = inputs(plan)[step]
    return [value for value, at in forms if value in plan.params and made_form(plan, at) < 0]
