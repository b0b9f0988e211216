"""The base of syntax tree nodes: records with their place, compared by identity."""

from __future__ import annotations

from dataclasses import field
from typing import TypeVar, dataclass_transform

from shardlang.records import dataclass
from shardlang.source import Span

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def node(cls: type[T]) -> type[T]:
    """The class as a record with slots."""
    return dataclass(frozen=True, slots=True, eq=False)(cls)


@node
class Node:
    """`span`: the node's text; it is given by name."""

    span: Span = field(kw_only=True, repr=False)
