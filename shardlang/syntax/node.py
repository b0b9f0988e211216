"""The base of syntax tree nodes: a slotted dataclass, quick to import, compared by identity."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


class Node:
    """Shows a node by its fields; nodes are compared by identity, not by their text."""

    __slots__ = ()

    def __repr__(self) -> str:
        inner = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name != "span")  # type: ignore[arg-type]
        return f"{type(self).__name__}({inner})"


@dataclass_transform(frozen_default=True, eq_default=False)
def node(cls: type[T]) -> type[T]:
    """A slotted dataclass, frozen for the type checker alone: what freezes it at run time takes
    Python twice as long to make, and every command pays for these classes at its start."""
    # Without a text of its own a dataclass works out its signature for one.
    cls.__doc__ = cls.__doc__ or cls.__name__
    return dataclass(slots=True, eq=False, repr=False)(cls)
