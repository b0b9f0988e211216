"""Steps of a stage -> how long the names of an emitted program hold what each makes.

A value has a name in the function that it is made in, or that it is returned to, and lives until
that returns. One that a layer of an array gives to the next has a name that the next takes over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardlang.frozen.records import remembered
from shardlang.graph.graph import Graph
from shardlang.paths.patterns import SingleLayers
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form, final_form, form, inputs, makes, transfers
from shardlang.sources.source import Span
from shardlang.step.blocks.blocks import call_tree
from shardlang.step.blocks.call import ROOT, BlockCall, runs
from shardlang.step.saved_activations import SavedActivations, saved_activations

Chain = tuple[int, ...]  # the functions around a step, from the outermost in


@remembered
def _called(graph: Graph) -> Mapping[tuple[str, Span], int]:
    """How often a model is called, by where it is declared."""
    return Counter([(call.model, call.span) for call in graph.calls])


class Functions:
    """Where steps stand in an emitted program (emit/functions.py). chains: step -> the functions
    around it. loops: call of a layer that is a turn of a loop -> the first call of that."""

    def __init__(self, plan: Plan, steps: Sequence[Step]) -> None:
        made = {at for step in steps for at in makes(plan)[step]}
        shown = [value for value in (plan.graph.loss, *plan.graph.metrics.values()) if value is not None]
        ends = [*(form(each.operands[0]) for each in transfers(plan)), *(final_form(plan, value) for value in shown)]
        tree = call_tree(plan, steps, [end for end in ends if end in made])
        self.calls = [tree]
        for call in self.calls:  # with those that are found on the way
            self.calls += [item for item in call.items if isinstance(item, BlockCall)]
        self.plan = plan
        self.operators: dict[int, int] = {}
        for call in reversed(self.calls):
            self.operators[call.call] = sum(self._counted(item) for item in call.items)
        self.chains: dict[Step, Chain] = {}
        self.loops: dict[int, int] = {}
        self._look(tree, ())

    def _counted(self, item: Step | BlockCall) -> int:
        """How many operators and functions an item is where it stands."""
        if isinstance(item, BlockCall):
            return 1 if self._has_one(item) else self.operators[item.call]
        return item.kind == "op"

    def _has_one(self, call: BlockCall) -> bool:
        """Whether a call has a function of its own."""
        made = self.plan.graph.calls[call.call] if call.call != ROOT else None
        several = made is not None and _called(self.plan.graph)[made.model, made.span] > 1
        return call.region >= 0 or (several and self.operators[call.call] > 2)

    def _look(self, call: BlockCall, chain: Chain) -> None:
        for item in runs(call.items):
            if isinstance(item, Step):
                self.chains[item] = chain
                continue
            for inner in item:
                own = self._has_one(inner)
                if inner.times > 1 and not own:
                    raise SingleLayers  # all of them have their names in the function around them
                self.loops[inner.call] = item[0].call
                self._look(inner, (*chain, inner.call) if own else chain)


class Frames:
    """ends: the number of a step -> the memories that names hold until it is done."""

    def __init__(self, plan: Plan, steps: Sequence[Step]) -> None:
        self.plan, self.steps = plan, steps
        self.facts: SavedActivations = saved_activations(plan)
        functions = Functions(plan, steps)
        self.loops = functions.loops
        self.chains = [self._chain(step, functions.chains.get(step, ())) for step in steps]
        last: dict[int, int] = {}
        readers: dict[Form, list[int]] = {}
        for at, step in enumerate(steps):
            last.update(dict.fromkeys(self.chains[at], at))
            for read in inputs(plan)[step]:
                readers.setdefault(self.facts.memory(read), []).append(at)
        self.ends: dict[int, list[Form]] = {}
        for at, step in enumerate(steps):
            for made in makes(plan)[step]:
                if self.facts.memory(made) == made:
                    end = self._end(at, readers.get(made, ()), last)
                    self.ends.setdefault(end, []).append(made)

    def _chain(self, step: Step, found: Chain) -> Chain:
        """With the function that computes a group which drops what it makes."""
        group = self.facts.owners.of(step)
        return (*found, -1 - group) if group is not None and self.facts.owners.drops(group) else found

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
        return last[chain[depth - 1]] if depth else len(self.steps) - 1

    def ends_of_forward(self, units: Units, kept: Mapping[int, Mapping[Any, int]]) -> Mapping[int, Sequence[Any]]:
        """`ends` with what units send to the host: the device holds that until the next of them has
        ended, or the forward. kept: unit -> the memories."""
        ends = {root: at for at, roots in self.ends.items() for root in roots}
        sent = sorted((units.steps[unit][-1], unit) for unit in units.to_host.values())
        following = [*(at for at, _ in sent[1:]), len(self.steps) - 1]
        for (_, unit), later in zip(sent, following, strict=False):
            for root in kept.get(unit, ()):
                ends[root] = max(ends.get(root, 0), later)
        found: dict[int, list[Any]] = {}
        for root, at in ends.items():
            found.setdefault(at, []).append(root)
        return found


class Units:
    """The steps that backward computes again in one go, by unit: a recompute group, or
    of one that drops what it makes each run of its steps in a function
    (emit/recomputed_regions.py).

    of: the number of a step -> its unit. steps: unit -> numbers. to_host: group that is not
    computed again, but saved on the host -> its unit."""

    def __init__(self, plan: Plan, steps: Sequence[Step], frames: Frames) -> None:
        self.of: dict[int, int] = {}
        self.steps: dict[int, list[int]] = {}
        self.to_host: dict[int, int] = {}
        open_: dict[tuple[int | None, Chain], tuple[int, set[Form]]] = {}
        for at, step in enumerate(steps) if frames.facts.owners.groups else ():
            group = frames.facts.owners.of(step)
            read = inputs(plan)[step]
            drops = frames.facts.owners.drops(group)
            key = (group, frames.chains[at] if drops else ())
            for other in [o for o, (_, made) in open_.items() if o != key and not made.isdisjoint(read)]:
                if frames.facts.owners.drops(other[0]):
                    del open_[other]
            if group is not None:
                unit, made = open_.setdefault(key, (len(self.steps), set()))
                made.update(makes(plan)[step])
                self.of[at] = unit
                self.steps.setdefault(unit, []).append(at)
                if frames.facts.owners.to_host(group):
                    self.to_host[group] = unit

    @property
    def again(self) -> Sequence[int]:
        """The units that are computed again."""
        return [unit for unit in self.steps if unit not in self.to_host.values()]
