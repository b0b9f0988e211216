"""Conversions on meshes with an axis of time: what happens along it is free and apart from what
ranks send.

Along time a value may only be repeated, kept of the first microbatch, cut out of a whole, or
(without gradient) summed once all parts are there. So a route is at most one such move, and a route
of one microbatch's part over the ranks. Bytes are those of a whole step: each move over ranks runs
once a microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardlang.plan.plan import Move, MoveKind
from shardlang.plan.redistribute.collective_bytes import RoutedValue
from shardlang.plan.time_axis import PENDING, WHOLE, in_time
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

Moves = tuple[tuple[Move, Layout], ...]

# The states between which one move leads with a gradient; `PLAIN`: where none is passed back.
FREE = ("IP", "RP", "RI", "RS")
PLAIN = (*FREE, "IR", "IS", "PI", "PR")


def without(layout: Layout, axis: str) -> Layout:
    """The layout over ranks alone."""
    dims = tuple(axes[1:] if axes[:1] == (axis,) else axes for axes in layout.dims)
    return Layout(
        dims, tuple(a for a in layout.pending if a != axis), tuple(a for a in layout.replicated if a != axis),
        layout.mesh,
    )  # fmt: skip


def cut_dim(layout: Layout, axis: str) -> int:
    """The tensor dim that is cut in time, or -1."""
    return next((d for d, axes in enumerate(layout.dims) if axes[:1] == (axis,)), -1)


def like(layout: Layout, other: Layout, axis: str) -> Layout:
    """A layout over ranks alone, with the state in time that `other` has."""
    state = other.state(axis)
    if state == "I":
        return layout
    return in_time(layout, {"P": PENDING, "R": WHOLE}.get(state, cut_dim(other, axis)), axis)


def part(value: RoutedValue, layout: Layout, axis: str, count: int) -> RoutedValue:
    """The part of one microbatch of a value, which is cut in equal parts in time."""
    dim = cut_dim(layout, axis)
    shape = tuple(-(-n // count) if d == dim else n for d, n in enumerate(value.shape))
    return RoutedValue(shape, value.itemsize, value.uneven - {dim})


def step(source: Layout, target: Layout, gradient: bool, axis: str) -> tuple[Move, Layout] | None:
    """The one move along time from `source` towards `target`; None if none is legal."""
    before, after = source.state(axis), target.state(axis)
    dim = cut_dim(target, axis) if after == "S" else -1
    if before + after not in (FREE if gradient else PLAIN) or (after == "S" and (dim < 0 or source.dims[dim])):
        return None
    return Move(MoveKind[f"{before}_TO_{after}"], (axis,), dim), like(without(source, axis), target, axis)


def same(source: Layout, target: Layout, axis: str) -> bool:
    """Whether nothing changes in time between two layouts."""
    return source.state(axis) == target.state(axis) and cut_dim(source, axis) == cut_dim(target, axis)


def uncut(source: Layout, target: Layout, gradient: bool, axis: str) -> Layout:
    """`source` with the dim whole that `target` cuts in time: ranks may cut it only after time."""
    dim = cut_dim(target, axis)
    cut = source.dims[dim] if dim >= 0 and source.state(axis) != "S" else ()
    if not cut:
        return source
    dims = tuple(() if d == dim else axes for d, axes in enumerate(source.dims))
    return replace(source, dims=dims, replicated=(*cut, *source.replicated) if gradient else source.replicated)


def scaled(moves: Moves, target: Layout, axis: str, count: int) -> Moves:
    """Moves over ranks as `target` has them in time, with the bytes of all microbatches."""
    return tuple(
        (
            replace(move, forward_bytes=move.forward_bytes * count, backward_bytes=move.backward_bytes * count),
            like(to, target, axis),
        )
        for move, to in moves
    )


def times_of(meshes: Sequence[Mesh]) -> tuple[str, int] | None:
    """Name and size of the axis of time, which all meshes of a plan share."""
    time = meshes[0].time if meshes else None
    return None if time is None else (time.name, time.size)
