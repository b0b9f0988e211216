"""A plan -> the two passes of each stage in a microbatch: the steps of forward, the works of
backward, in order, and the memories that are kept from one for the other.

Backward goes from the last step to the first, as torch's autograd does. It computes dropped values
again, a unit at a time, before the first step that asks for any of them; a unit first asks for its
own inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from shardlang.facts.actions import BackwardCut
from shardlang.frozen.records import remembered
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import inputs
from shardlang.step.kept import KeptMemories
from shardlang.step.stages import steps_of_stages
from shardlang.step.units import PassWay, PassWork, StageSteps, Units, parameters_read


class StagePasses(StageSteps):
    """Both passes of a stage; forward takes `steps` in order."""

    @cached_property
    def units(self) -> Units:
        return Units(self)

    @cached_property
    def backward(self) -> Sequence[PassWork]:
        """The works of backward, in order."""
        found, done = list[PassWork](), set[int]()

        def ask(unit: int) -> None:
            if unit < 0 or unit in done:
                return
            done.add(unit)
            if unit not in self.units.again:
                found.append(PassWork(PassWay.FROM_HOST, (), unit))
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
                found.append(PassWork(PassWay.BACK, (at,)))
        return found

    @cached_property
    def halves(self) -> BackwardCut:
        """The parts of its backward, where a schedule cuts it."""
        graph = self.plan.graph
        if self.units.again:
            return BackwardCut.ALL_FIRST
        ops = [graph.ops[self.plan.ops[step.index].op] for step in self.steps if step.kind == "op"]
        back = any(op.operator == TRANSFER and graph.values[op.results[0]].gradient for op in ops)
        return BackwardCut.CUT if back else BackwardCut.ALL_SECOND

    @cached_property
    def kept(self) -> KeptMemories:
        return KeptMemories(self, self.units)

    def parameters(self, work: PassWork) -> Iterator[int]:
        """The parameters that are read, in order."""
        for step in (self.steps[at] for at in (*work.steps, *work.begun)):
            if work.way is not PassWay.BACK:
                yield from parameters_read(self.plan, step)
            elif step.kind == "op":
                yield from reversed(self.facts.saved.get(self.plan.ops[step.index].op, ()))


@remembered
def passes(plan: Plan) -> Mapping[int, StagePasses]:
    """Those of each stage (0 without)."""
    steps = steps_of_stages(plan)
    return {stage: StagePasses(plan, stage, steps.get(stage, ())) for stage in range(len(plan.coordinates))}


@remembered
def computed_again(plan: Plan) -> frozenset[Step]:
    """The steps that backward computes again."""
    units = ((of, unit) for of in passes(plan).values() for unit in of.units.again)
    return frozenset(of.steps[at] for of, unit in units for at in of.units.run_again(unit).steps)
