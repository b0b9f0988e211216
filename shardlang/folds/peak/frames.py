"""Steps of a stage -> how long the names of an emitted program hold what each makes.

A value has a name in the function that it is made in, or that it is returned to, and lives until
that returns. One that a layer of an array gives to the next has a name that the next takes over."""

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
        self.ends: dict[int, list[Form]] = {}
        for at, step in enumerate(steps):
            for made in makes(plan)[step]:
                if memory(made) == made:
                    end = self._end(at, readers.get(made, ()), last)
                    self.ends.setdefault(end, []).append(made)

    def _end(self, made: int, readers: Sequence[int], last: Mapping[int, int]) -> int:
        chain = self.chains[made]
        depth = len(chain)
        for at in readers:
            while chain[:depth] != self.chains[at][:depth]:
                depth -= 1
        if depth < len(chain) and readers and len(self.chains[readers[-1]]) > depth:
            giver, taker = chain[depth], self.chains[readers[-1]][depth]
            if giver != taker and self.loops.get(giver, -1) == self.loops.get(taker, -2):
                return last[taker]
        return last[chain[depth - 1]] if depth else len(self.passes.steps) - 1

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
