"""What was watched of an emitted program on real ranks -> the same results that simulated ranks give.

The emitter's names tell which form of which value a local variable is. A value that has no line of its own (a product
that takes in its bias) is not seen; a name that stands for the tensor of another has no gradient apart from it.
A place is a rank at a microbatch, as in the plan's meshes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shardlang.emit.names import form_names
from shardlang.interpret.compare import forms_of
from shardlang.interpret.ranks import Form, Locals, Results
from shardlang.plan.plan import Plan
from shardlang.runtime.observe import Call, Record

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Step:
    """The records of all ranks for one step."""

    plan: Plan
    records: Sequence[Record]

    @cached_property
    def calls(self) -> list[list[Call]]:
        """By place, the calls that computed there."""
        found: list[list[Call]] = []
        for record in self.records:
            for part in range(self.plan.microbatches):
                found.append([call for call in record.calls if call.microbatch == part])
        return found

    @cached_property
    def names(self) -> dict[Form, str]:
        """Forms that a local variable stands for, in order of computation."""
        texts = form_names(self.plan)
        return {form: texts[form] for form in forms_of(self.plan) if texts.get(form, "").isidentifier()}

    def locals(self, name: str, of: Callable[[Call], Named]) -> list[Tensor | None]:
        """By place, what a name stands for."""
        return [next((of(c)[name] for c in calls if name in of(c)), None) for calls in self.calls]

    def results(self) -> Results:
        """All that was seen; forms in the order of the plan."""
        forms = {form: self.locals(name, lambda c: c.values) for form, name in self.names.items()}
        there: dict[Form, Locals] = {f: [x for x in xs if x is not None] for f, xs in forms.items() if None not in xs}
        aliases = {alias for calls in self.calls for call in calls for alias in call.aliases}
        firsts: dict[str, Form] = {}
        for form, name in self.names.items():
            firsts.setdefault(name, form)
        unseen = {f for f, name in self.names.items() if name in aliases or firsts[name] != f}
        gradients = {
            f: self._filled(name, there[f]) for f, name in self.names.items() if f in there and f not in unseen
        }
        return Results(
            forms=there,
            gradients={form: xs for form, xs in [*gradients.items(), *self._leaves().items()] if xs is not None},
            stored=self._reduced(),
            states=self._by_path(self.plan.graph.states, lambda r: r.states),
            figures=self.records[0].figures,
            unseen=frozenset(unseen),
        )

    def _filled(self, name: str, values: Sequence[Tensor]) -> Locals | None:
        """A gradient that came to some ranks only is zero on the others."""
        found = self.locals(name, lambda c: c.gradients)
        if all(x is None for x in found):
            return None
        return [torch.zeros_like(v) if x is None else x for x, v in zip(found, values, strict=True)]

    def _leaves(self) -> dict[Form, Locals]:
        """Local gradients of parameters as functions read them: of those that ranks store whole."""
        found = {}
        for value in self.plan.graph.params:
            path = self.plan.graph.values[value].path
            local = [
                r.gradients.get(part, {}).get(path) for r in self.records for part in range(self.plan.microbatches)
            ]
            known = next((x for x in local if x is not None), None)
            if known is not None:
                found[value, -1] = [torch.zeros_like(known) if x is None else x for x in local]
        return found

    def _reduced(self) -> dict[int, Locals]:
        """Reduced gradients; the runtime takes one that never came for zeros."""
        graph, found = self.plan.graph, {}
        for value, kept in self.parameters().items():
            path = graph.values[value].path
            if graph.values[value].gradient:
                local = self._places([r.reduced.get(path) for r in self.records])
                found[value] = [torch.zeros_like(x) if g is None else g for g, x in zip(local, kept, strict=True)]
        return found

    def parameters(self) -> dict[int, Locals]:
        """What each rank stores of each parameter after the step."""
        return self._by_path(self.plan.graph.params, lambda r: r.parameters)

    def _by_path(self, values: Sequence[int], of: Callable[[Record], Named]) -> dict[int, Locals]:
        found = {}
        for value in values:
            path = self.plan.graph.values[value].path
            if all(path in of(r) for r in self.records):
                found[value] = self._places([of(r)[path] for r in self.records])
        return found

    def _places(self, by_rank: Sequence[Any]) -> list[Any]:
        """What a rank has, it has at every microbatch."""
        return [x for x in by_rank for _ in range(self.plan.microbatches)]
