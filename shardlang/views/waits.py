"""A plan on hardware -> the seconds of the collectives of one value, and those of them for which
ranks wait."""

from __future__ import annotations

from functools import cached_property

from shardlang.cost.hardware import Hardware
from shardlang.cost.items import Steps
from shardlang.cost.planned import work
from shardlang.cost.prices import Prices
from shardlang.cost.scripts import Scripts
from shardlang.cost.work import Collective, Item
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Plan, Step
from shardlang.step.passes import computed_again
from shardlang.step.phases import phases

# Seconds of what a step sends, and those that ranks wait for it.
Both = tuple[float, float]


@dataclass
class Waits:
    """Those of a plan's collectives in line."""

    plan: Plan
    hardware: Hardware

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self.plan)

    @cached_property
    def _scripts(self) -> Scripts:
        return Scripts(Prices(work(self.plan), self.hardware), self.hardware.overlap)

    @cached_property
    def _once(self) -> frozenset[Step]:
        """The steps that microbatches do not repeat."""
        return frozenset((*phases(self.plan).known, *phases(self.plan).after))

    def conversion(self, number: int) -> Both:
        """Those of a conversion in a step of training."""
        return self._of(Step("conversion", number))

    def operator(self, at: int) -> Both:
        """Those inside of an operator (in `Plan.ops`)."""
        return self._of(Step("op", at))

    def _of(self, step: Step) -> Both:
        steps, times = self._steps, 1 if step in self._once else self.plan.microbatches
        again = steps.again(step) if step in computed_again(self.plan) else ()
        items: dict[Item, int] = {}
        for item in (*steps.forward(step), *again, *steps.backward(step)):
            if isinstance(item, Collective):
                items[item] = items.get(item, 0) + times
        beat = self._scripts.beat("", items)
        return sum(self._scripts.prices.item(item) * count for item, count in items.items()), sum(beat.waits.values())
