"""The passes of a stage -> what is kept on the device from forward for backward, and when backward
lets go of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from shardlang.plan.reads import Form, form, makes, transfers
from shardlang.step.saved_activations import device_bytes
from shardlang.step.units import StageSteps, Units


class KeptMemories:
    """The memories that a stage keeps on the device for backward.

    of: unit that it is computed again with (-1: it stays from forward on) -> the memories, with
    their bytes. home: memory -> its unit."""

    def __init__(self, stage: StageSteps, units: Units) -> None:
        self.among, self.units, facts = stage, units, stage.facts
        made = {form: at for at, step in enumerate(stage.steps) for form in makes(stage.plan)[step]}
        self.home: dict[Any, int] = {}
        self.of: dict[int, dict[Any, int]] = {-1: self._on_device(facts.kept.get((stage.stage, -1), {}))}
        for (at, group), kept in facts.kept.items():
            for root, size in self._on_device(kept).items() if at == stage.stage and group >= 0 else ():
                unit = self.home[root] = self._unit(group, root, made)
                self.of.setdefault(unit, {})[root] = size
        self.home.update(dict.fromkeys(self.of[-1], -1))
        for unit in units.again:  # what one hands to another is computed again for that
            for root in units.given(unit):
                if root in made and root not in self.home and units.of.get(made[root], unit) != unit:
                    maker = self.home[root] = units.of[made[root]]
                    self.of.setdefault(maker, {})[root] = device_bytes(stage.plan, root)

    def _unit(self, group: int, root: Any, made: Mapping[Form, int]) -> int:
        """The unit that a kept memory of a group comes back with."""
        units, places = self.units, self._places
        maker = places[root[1]] if root[0] == "made by" else made.get(root, -1)
        return units.to_host.get(group, units.of.get(maker, -1))

    @cached_property
    def _places(self) -> Mapping[int, int]:
        """Operator (id) -> the number of its step."""
        plan = self.among.plan
        return {plan.ops[step.index].op: at for at, step in enumerate(self.among.steps) if step.kind == "op"}

    def _on_device(self, kept: Mapping[Any, int]) -> dict[Any, int]:
        """The bytes of what is kept on the device."""
        plan = self.among.plan
        if not plan.memory_of:
            return dict(kept)
        values = {root: plan.graph.ops[root[1]].results[0] if root[0] == "made by" else root[0] for root in kept}
        return {root: 0 if values[root] in plan.memory_of else size for root, size in kept.items()}

    @cached_property
    def freed(self) -> Mapping[int, Sequence[Any]]:
        """The number of a step -> the kept memories that nothing needs after its backward."""
        units, found = self.units, dict[Any, int]()
        ends: dict[int, int] = {}  # unit -> the same of all that is kept of it
        begins: dict[int, int] = {}  # unit -> the first that asks for it
        given: dict[int, int] = {}  # unit -> the same of what it gives to others, who let it go together
        outside: dict[int, list[Any]] = {}
        for at, step in enumerate(self.among.steps):
            for root in self.among.reads(step):
                found.setdefault(root, at)
                if (unit := self.home.get(root, -1)) >= 0:
                    ends[unit], begins[unit] = min(ends.get(unit, at), at), at
                    if units.of.get(at) != unit:
                        given[unit] = min(given.get(unit, at), at)
                        outside.setdefault(unit, []).append(root)
        for unit, roots in outside.items():
            found.update((root, min(found[root], given[unit])) for root in roots)
        for unit in sorted(units.again, reverse=True):
            for root in units.given(unit) if unit in ends else ():
                home = self.home.get(root)
                if home == -1:
                    found[root] = min(found.get(root, ends[unit]), ends[unit])
                elif home is not None and home != unit:
                    found.setdefault(root, begins[unit])
                    ends[home] = min(ends.get(home, ends[unit]), ends[unit])
                    begins[home] = max(begins.get(home, 0), begins[unit])
        freed: dict[int, list[Any]] = {}
        crossing = self._crossing()
        for root, at in found.items():
            if root not in crossing:
                freed.setdefault(at, []).append(root)
        return freed

    def _crossing(self) -> set[Any]:
        """Memories of what stages receive and send, which are held to the end of a backward."""
        plan, found = self.among.plan, set[Any]()
        for planned in transfers(plan):
            forms = (plan.graph.ops[planned.op].results[0], -1), form(planned.operands[0])
            found.update(self.among.facts.memory(at) for at in forms)
        return found
