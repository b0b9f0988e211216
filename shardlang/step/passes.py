"""A plan -> the two passes of each stage in a microbatch: what forward computes, what backward goes
through and computes again, in order, and what is kept from one for the other.

Backward goes from the last step to the first, as torch's autograd does. What is not kept is
computed again, a unit at a time, before the first step that asks for any of it; a unit first asks
for what it is computed from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from shardlang.frozen.records import remembered
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import MoveKind, Plan, Step
from shardlang.plan.reads import Form, inputs, made_form, makes
from shardlang.step.functions import Chain, Functions
from shardlang.step.kept import KeptMemories
from shardlang.step.saved_activations import fused, saved_activations
from shardlang.step.stages import steps_of_stages


class Way(Enum):
    """FORWARD; AGAIN: forward within backward; FROM_HOST: nothing is computed, what a unit has saved
    comes back; BACK: the gradients of what a step reads."""

    FORWARD, AGAIN, FROM_HOST, BACK = "forward", "again", "from host", "backward"


class Work(NamedTuple):
    """What a pass does next. steps: their numbers in the stage, ascending; of BACK one. unit: that
    is computed again, or comes from the host. begun: the steps of the call that follows in a unit,
    where torch ends before it is computed: what it reads is there, and it makes nothing."""

    way: Way
    steps: tuple[int, ...]
    unit: int = -1
    begun: tuple[int, ...] = ()


class Halves(Enum):
    """The two parts of a backward that a schedule cuts (runtime/step/split_backward.py): the
    gradients of what the stage received are made in the first and those of parameters in the
    second (CUT), or all in the first, where anything is computed again, or all in the second, where
    no gradient goes back further."""

    CUT, ALL_FIRST, ALL_SECOND = "cut", "all first", "all second"


class StagePasses:
    """Both passes of a stage. steps: in the order of forward: what is received is there before,
    metrics come after the loss."""

    def __init__(self, plan: Plan, stage: int, steps: Sequence[Step]) -> None:
        self.plan, self.stage = plan, stage
        self.steps = sorted(steps, key=lambda step: 2 * (not for_loss(plan, step)) - received(plan, step))
        self.facts = saved_activations(plan)

    @cached_property
    def functions(self) -> Functions:
        return Functions(self.plan, self.steps)

    @cached_property
    def chains(self) -> Sequence[Chain]:
        """The functions around each step, with the one that computes a group which drops what it
        makes."""
        owners, around = self.facts.owners, self.functions.chains
        groups = [owners.of(step) for step in self.steps]
        found = zip(self.steps, groups, strict=True)
        return [(*around.get(s, ()), *([-1 - g] if g is not None and owners.drops(g) else ())) for s, g in found]

    @cached_property
    def units(self) -> Units:
        return Units(self)

    @cached_property
    def backward(self) -> Sequence[Work]:
        """What backward does, in order."""
        found, done = list[Work](), set[int]()

        def ask(unit: int) -> None:
            if unit < 0 or unit in done:
                return
            done.add(unit)
            if unit not in self.units.again:
                found.append(Work(Way.FROM_HOST, (), unit))
                return
            work = self.units.run_again(unit)
            for read in (read for at in work.steps for read in inputs(self.plan)[self.steps[at]]):
                ask(self.kept.home.get(self.facts.memory(read), -1))
            found.append(work)

        for at in range(len(self.steps) - 1, -1, -1):
            if self.takes(self.steps[at]):
                read = self.reads(self.steps[at])
                for unit in [self.kept.home.get(root, -1) for root in read]:
                    ask(unit)
                if read and (unit := self.units.of.get(at, -1)) in self.units.again:
                    ask(unit)  # torch asks for all that is saved within it, also of what is there
                found.append(Work(Way.BACK, (at,)))
        return found

    @cached_property
    def halves(self) -> Halves:
        graph = self.plan.graph
        if self.units.again:
            return Halves.ALL_FIRST
        ops = [graph.ops[self.plan.ops[step.index].op] for step in self.steps if step.kind == "op"]
        back = any(op.operator == TRANSFER and graph.values[op.results[0]].gradient for op in ops)
        return Halves.CUT if back else Halves.ALL_SECOND

    @cached_property
    def kept(self) -> KeptMemories:
        return KeptMemories(self)

    def takes(self, step: Step) -> bool:
        """Whether a gradient goes through a step."""
        values = self.plan.graph.values
        return for_loss(self.plan, step) and any(values[value].gradient for value, _ in makes(self.plan)[step])

    def reads(self, step: Step) -> Sequence[Any]:
        """The memories that a step keeps for backward."""
        return self.facts.reads.get(self.plan.ops[step.index].op, ()) if step.kind == "op" else ()

    def parameters(self, work: Work) -> Iterator[int]:
        """The parameters that are read, in order."""
        for step in (self.steps[at] for at in (*work.steps, *work.begun)):
            if work.way is not Way.BACK:
                yield from parameters_read(self.plan, step)
            elif step.kind == "op":
                yield from reversed(self.facts.saved.get(self.plan.ops[step.index].op, ()))


class Units:
    """The steps that backward computes again in one go, by unit: a recompute group, or of one that
    drops what it makes each run of its steps in a function (emit/recomputed_regions.py).

    of: the number of a step -> its unit. steps: unit -> numbers. to_host: group that is not
    computed again, but saved on the host -> its unit."""

    def __init__(self, passes: StagePasses) -> None:
        self.passes = passes
        self.of: dict[int, int] = {}
        self.steps: dict[int, list[int]] = {}
        self.to_host: dict[int, int] = {}
        plan, owners = passes.plan, passes.facts.owners
        open_: dict[tuple[int | None, Chain], tuple[int, set[Form]]] = {}
        for at, step in enumerate(passes.steps) if owners.groups else ():
            group, read = owners.of(step), inputs(plan)[step]
            key = (group, passes.chains[at] if owners.drops(group) else ())
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

    def run_again(self, unit: int) -> Work:
        """What of a unit backward computes again."""
        facts, steps = self.passes.facts, self.passes.steps
        numbers = [at for at in self.steps[unit] if facts.runs_again(steps[at])]
        drops = not numbers or facts.owners.drops(facts.owners.of(steps[numbers[-1]]))
        if drops or not self._stops_before(steps[numbers[-1]]):
            return Work(Way.AGAIN, tuple(numbers), unit)
        last = steps[numbers.pop()]
        call = {last, Step("op", fused(self.passes.plan).get(last.index, -1))}
        return Work(Way.AGAIN, tuple(numbers), unit, tuple([at for at in self.steps[unit] if steps[at] in call]))

    def _stops_before(self, step: Step) -> bool:
        """Whether torch ends before a step that is the last to save anything, since it saves only
        what it reads: that comes before it is computed, but in functions of the runtime, which
        those are that send."""
        plan = self.passes.plan
        own = {("made by", plan.ops[step.index].op), *makes(plan)[step]} if step.kind == "op" else set()
        return own.isdisjoint(self.passes.reads(step)) and not (step.kind == "op" and plan.ops[step.index].inside)

    def given(self, unit: int) -> Iterator[Any]:
        """The memories that a unit reads of others."""
        plan, steps = self.passes.plan, [self.passes.steps[at] for at in self.steps[unit]]
        own = {form for step in steps for form in makes(plan)[step]}
        roots = (self.passes.facts.memory(form) for step in steps for form in inputs(plan)[step])
        yield from (root for root in roots if root not in own)


@remembered
def passes(plan: Plan) -> Mapping[int, StagePasses]:
    """Those of each stage (0 without)."""
    steps = steps_of_stages(plan)
    return {stage: StagePasses(plan, stage, steps.get(stage, ())) for stage in range(len(plan.coordinates))}


@remembered
def computed_again(plan: Plan) -> frozenset[Step]:
    """The steps that backward computes again."""
    works = ((of, work) for of in passes(plan).values() for work in of.backward if work.way is Way.AGAIN)
    return frozenset(of.steps[at] for of, work in works for at in work.steps)


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
