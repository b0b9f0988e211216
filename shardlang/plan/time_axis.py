"""The axis of microbatches: what operators do along it, and where values are cut, pending or whole.

Small values that all of planning reads; made by rewrite/microbatches.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span
from shardlang.types.layout import Layout

NAME = "microbatch"
# States along the time axis: the tensor dim that is cut (0 and up), or one of these.
WHOLE, PENDING = -1, -2


@dataclass(frozen=True, slots=True)
class InTime:
    """The behaviour of an operator along `axis`: splits `factor`, or lets the pending sum `through`
    (an index into its rule's `through`); -1 for neither: then it is repeated with every microbatch,
    or computed once from totals."""

    axis: str
    factor: int = -1
    through: int = -1


@dataclass(frozen=True)
class TimeSplit:
    """`ops`: by op id. `states`: of every produced value in time: a cut dim, PENDING, or WHOLE."""

    axis: str
    count: int
    ops: tuple[InTime, ...]
    states: Mapping[int, int]


def in_time(layout: Layout, state: int, axis: str) -> Layout:
    """A layout that says nothing of time, with a state along it: a dim, PENDING, or WHOLE (R)."""
    if state == PENDING:
        return replace(layout, pending=(*layout.pending, axis))
    if state == WHOLE:
        return replace(layout, replicated=(*layout.replicated, axis))
    return replace(layout, dims=tuple((axis, *a) if d == state else a for d, a in enumerate(layout.dims)))


@dataclass(frozen=True, slots=True)
class MicrobatchRule:
    """`microbatches M`, evaluated."""

    count: int
    span: Span
