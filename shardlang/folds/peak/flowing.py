"""Parts of the gradients of values -> the memory that these take on their way back: autograd adds a
part to the first one in place where nobody else has that, and else in new memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shardlang.folds.peak.ledger import Ledger
from shardlang.plan.reads import Form

FLOWING = "gradients of values"


@dataclass
class FlowingGradient:
    """A gradient of a value; held: how often."""

    size: int
    held: int = 1


@dataclass
class Backward:
    """The state of one backward. flowing: form -> its gradient so far; views: those that are one.
    open_: kept memory -> bytes. again: units that have been computed again. readers: parameter ->
    uses to come. waiting: the number of a step -> what `StagePass._arrive` takes of gradients that
    are cast with one of its own."""

    ledger: Ledger
    flowing: dict[Form, FlowingGradient] = field(default_factory=dict)
    views: set[Form] = field(default_factory=set)
    open_: dict[Any, int] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    readers: Counter[int] = field(default_factory=Counter)
    waiting: dict[int, list[tuple[int, Form, FlowingGradient, bool]]] = field(default_factory=dict)

    def drop(self, memory: FlowingGradient) -> None:
        """One that had it lets go of it."""
        memory.held -= 1
        if not memory.held:
            self.ledger.add(FLOWING, -memory.size)

    def add(self, at: int, form: Form, memory: FlowingGradient, view: bool, apart: bool = False) -> None:
        """A part of the gradient of a form comes in a step. To a view nothing is added in place,
        nor by ZeRO 3, which adds them up itself (`apart`)."""
        before, viewed = self.flowing.get(form), form in self.views
        memory.held += apart
        self.views.discard(form)
        if before is None:
            self.flowing[form] = memory
            self.views.update([form] if view else [])
        elif before.held == 1 and not viewed:
            self.drop(memory)
        else:
            size = max(before.size, memory.size)
            self.ledger.look("backward", at, size, FLOWING)
            self.ledger.add(FLOWING, size)
            for old in (before, memory):
                old.held -= apart
                self.drop(old)
            self.flowing[form] = FlowingGradient(size, 1 + apart)
