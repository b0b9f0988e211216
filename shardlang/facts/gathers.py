"""The parameters that ZeRO 3 gathers, unit after unit: what is there does not come again."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Generic, TypeVar

T = TypeVar("T")


class GatherState(Generic[T]):
    """The last unit that came (`there`), and all that is kept to the end of a step."""

    def __init__(self, there: Set[T] = frozenset()) -> None:
        self.there, self.kept = there, set[T]()

    def brings(self, unit: Iterable[T], keep: Iterable[T] = ()) -> Set[T]:
        """Those that come for the next unit, of which `keep` are kept."""
        kept = {*keep}
        new, fleeting = kept - self.kept, {*unit} - kept
        self.kept |= kept
        if fleeting <= self.there:
            return new
        self.there = fleeting
        return new | fleeting
