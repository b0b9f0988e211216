"""Tables of what planning has found out about operators and layouts, so that plans which have them
in common find it out once.

A search plans a program under many strategies. The tables depend on meshes, classes of operators
and layouts alone, so every plan is the same with them as without."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Found = TypeVar("Found")


class LayoutTables:
    """Tables by what they are about."""

    def __init__(self) -> None:
        self._tables: dict[Hashable, Any] = {}

    def table(self, about: Hashable, make: Callable[[], Found]) -> Found:
        """The one table about something."""
        if about not in self._tables:
            self._tables[about] = make()
        table: Found = self._tables[about]
        return table
