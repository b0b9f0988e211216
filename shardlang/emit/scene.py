"""The parts of the functions of one file: steps, calls of layers, and loops over calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from shardlang.frozen.records import dataclass, remembered
from shardlang.paths.patterns import indexes
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form, makes
from shardlang.step.blocks.call import BlockCall
from shardlang.step.blocks.forms import Forms
from shardlang.step.recompute_groups import RecomputeGroups
from shardlang.step.saved_activations import owners


@dataclass(frozen=True)
class Loop:
    """Neighbours of an array that are the same block, each taking what the one before gives.
    carried: operand of a call -> which of the results of the call before it is."""

    calls: tuple[BlockCall, ...]
    carried: Mapping[int, int]

    @property
    def layers(self) -> range:
        """The indexes of the layers."""
        arrays = self.calls[0].array, self.calls[-1].array
        return range(arrays[0][1].start, arrays[1][1].stop) if arrays[0] and arrays[1] else range(len(self.calls))


Item = Step | BlockCall | Loop
_LAYER = re.compile(r"\[([\d-]+)\]")


def calls_of(item: Item) -> Sequence[BlockCall]:
    """The calls of layers that an item is."""
    if isinstance(item, Loop):
        return item.calls
    return [item] if isinstance(item, BlockCall) else []


@dataclass(frozen=True)
class FileContext:
    """The state that all functions of `forward` (or `evaluate`) of one file share. forms: what is
    there before. steps: all of theirs. stage: whose file it is."""

    plan: Plan
    training: bool
    forms: Forms
    steps: Sequence[Step]
    stage: int | None

    @cached_property
    def owners(self) -> RecomputeGroups | None:
        """Which steps are computed again in backward."""
        found = owners(self.plan, self.steps)
        return found if found.groups and self.training else None

    @property
    def arrays(self) -> Mapping[str, set[int]]:
        """Array of layers -> those of them that have parameters or states here."""
        return _arrays(self.plan)[self.stage]

    def read(self, item: Item) -> Sequence[Form]:
        """The forms that an item reads."""
        if isinstance(item, Step):
            return self.forms.reads(item)
        return item.reads if isinstance(item, BlockCall) else item.calls[0].reads

    def made(self, item: Item) -> Sequence[Form]:
        """The forms that an item makes."""
        if isinstance(item, Step):
            return makes(self.plan)[item]
        return item.gives if isinstance(item, BlockCall) else item.calls[-1].gives


@remembered
def _arrays(plan: Plan) -> Mapping[int | None, Mapping[str, set[int]]]:
    """Stage (None without any) -> array -> layers."""
    found: dict[int | None, dict[str, set[int]]] = {}
    for at in (*plan.graph.params, *plan.graph.states):
        path = plan.graph.values[at].path
        layers = [(path[: match.start()], indexes(match[1])) for match in _LAYER.finditer(path)]
        for stage in (None,) if plan.pipeline is None else plan.pipeline.param_stages.get(at, ()):
            for array, mine in layers:
                found.setdefault(stage, {}).setdefault(array, set()).update(mine)
    return found
