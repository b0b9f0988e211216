"""The passes of a rank -> the memory of what ZeRO 3 gathers for them, as runtime/state/zero3.py
brings it: the next unit is under way while one is used."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.folds.peak.ledger import Beside
from shardlang.frozen.records import remembered
from shardlang.graph.graph import InTurn
from shardlang.plan.plan import Plan
from shardlang.step.parameters import part_bytes
from shardlang.step.zero3_gathers import Brought, Params

GATHERED, COMING = "gathered parameters", "collectives"


class Gathers:
    """Those of one pass. first: nothing is under way yet."""

    def __init__(self, plan: Plan, beside: Beside, brought: Brought, first: bool) -> None:
        self.plan, self.beside, self.there = plan, beside, brought.there
        self.queue = [*brought.units, *([] if brought.after is None else [brought.after])]
        self.left, self.coming = len(brought.units), not first and bool(self.queue)
        self._begin()

    def use(self, value: InTurn, doing: str, step: int) -> None:
        """A parameter is read."""
        if value in self.there:
            return
        at = next((at for at, unit in enumerate(self.queue[: self.left]) if value in unit), None)
        if at is None:
            part, whole = of_each(self.plan)[value[0]]
            self.beside.look(doing, step, part + 2 * whole, GATHERED)
            return
        if at:
            self._arrived()
            self.queue, self.left = self.queue[at:], self.left - at
        self._begin()
        self._open(doing, step)

    def _open(self, doing: str, step: int) -> None:
        """Each parameter of a unit is copied out of what has come."""
        unit = self.queue[0]
        self._let_go()
        for value, _ in sorted(unit):
            self.beside.add(GATHERED, of_each(self.plan)[value][1])
        self.beside.look(doing, step)
        self._arrived()
        self.there, self.queue, self.left = unit, self.queue[1:], self.left - 1
        self._begin()
        self.beside.look(doing, step)

    def _begin(self) -> None:
        """The next unit is under way: its result, and what this rank gives."""
        if not self.coming and self.queue:
            for size in self._sizes(self.queue[0]):
                self.beside.add(COMING, size)
            self.coming = True

    def _arrived(self) -> None:
        if self.coming:
            for size in self._sizes(self.queue[0]):
                self.beside.add(COMING, -size)
            self.coming = False

    def end(self) -> None:
        """The passes of a step are over."""
        self._arrived()
        self._let_go()

    def _let_go(self) -> None:
        for value, _ in sorted(self.there):
            self.beside.add(GATHERED, -of_each(self.plan)[value][1])

    def _sizes(self, unit: Params) -> tuple[int, int]:
        """Bytes that this rank gives for a unit, and of all of it, padded."""
        each = [of_each(self.plan)[value] for value, _ in unit]
        return sum(part for part, _ in each), sum(whole for _, whole in each)


@remembered
def of_each(plan: Plan) -> Mapping[int, tuple[int, int]]:
    """Parameter -> the bytes that this rank gives for it where ZeRO cuts it, and of all
    of it, padded."""
    parts = {value: part_bytes(plan, param) for value, param in plan.params.items()}
    degrees = {value: plan.meshes[param.stored.mesh].degree(param.zero_axes) for value, param in plan.params.items()}
    return {value: (part, part * degrees[value]) for value, part in parts.items()}
