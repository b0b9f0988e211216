"""Steps of a stage -> the functions of its emitted program in which each stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from shardlang.frozen.records import remembered
from shardlang.graph.graph import Graph
from shardlang.paths.patterns import SingleLayers
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import final_form, form, makes, transfers
from shardlang.sources.source import Span
from shardlang.step.blocks.blocks import call_tree
from shardlang.step.blocks.call import ROOT, BlockCall, runs

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
