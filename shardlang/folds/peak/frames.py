"""Steps of a stage -> how long the names of an emitted program hold what each makes.

A value has a name in the function that it is made in, or that it is returned to, and lives until
that returns. One that a layer of an array gives to the next, or that a loop begins with, has a name
that the next turn takes over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardlang.plan.reads import Form, inputs, makes
from shardlang.step.passes import StagePasses


class Frames:
    """ends: the number of a step -> the memories that names hold until it is done."""

    def __init__(self, passes: StagePasses) -> None:
        self.passes, self.chains, self.loops = passes, passes.chains, passes.functions.loops
        plan, steps, memory = passes.plan, passes.steps, passes.facts.memory
        last: dict[int, int] = {}
        readers: dict[Form, list[int]] = {}
        for at, step in enumerate(steps):
            last.update(dict.fromkeys(self.chains[at], at))
            for read in inputs(plan)[step]:
                readers.setdefault(memory(read), []).append(at)
        self.last, self.after = last, {memory(form) for form in passes.functions.ends}
        self.ends: dict[int, list[Form]] = {}
        for at, step in enumerate(steps):
            for made in makes(plan)[step]:
                if memory(made) == made:
                    self.ends.setdefault(self._end(at, made, readers.get(made, ())), []).append(made)

    def _end(self, at: int, made: Form, readers: Sequence[int]) -> int:
        chain = self.chains[at]
        depth = len(chain)
        for read in readers:
            while chain[:depth] != self.chains[read][:depth]:
                depth -= 1
        giver, takers = chain[depth : depth + 1], [self.chains[read][depth : depth + 1] for read in readers]
        if takers and takers[-1] and giver != takers[-1]:
            turns = [self.loops.get(call[0]) if call else None for call in (giver, takers[-1])]
            begins = turns[1] == takers[-1][0] and len({*takers}) == 1 and made not in self.after
            if turns[1] is not None and (turns[0] == turns[1] or begins):
                return self.last[takers[-1][0]]
        return self.last[chain[depth - 1]] if depth else len(self.passes.steps) - 1

    def of_forward(self) -> Mapping[int, Sequence[Any]]:
        """`ends` with what units send to the host: the device holds that until the next of them has
        ended, or the forward."""
        units, kept = self.passes.units, self.passes.kept.of
        ends = {root: at for at, roots in self.ends.items() for root in roots}
        sent = sorted((units.steps[unit][-1], unit) for unit in units.to_host.values())
        following = [*(at for at, _ in sent[1:]), len(self.passes.steps) - 1]
        for (_, unit), later in zip(sent, following, strict=False):
            for root in kept.get(unit, ()):
                ends[root] = max(ends.get(root, 0), later)
        found: dict[int, list[Any]] = {}
        for root, at in ends.items():
            found.setdefault(at, []).append(root)
        return found
