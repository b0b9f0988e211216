"""Moves and routes between layouts by the names of axes, one value at a time: as the planner finds them, for tests."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardlang.plan.plan import Move
from shardlang.plan.redistribute.cheapest import Route, router
from shardlang.plan.redistribute.collective_bytes import (
    BitLayout,
    RoutedValue,
    Space,
    limits,
    members,
    parts_to_bytes,
    steps,
)
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh


def to_state(layout: Layout, mesh: Mesh) -> BitLayout:
    number = {axis.name: i for i, axis in enumerate(mesh.axes)}
    return BitLayout(
        tuple(tuple(number[a] for a in axes) for axes in layout.dims), sum(1 << number[a] for a in layout.pending),
        sum(1 << number[a] for a in layout.replicated),
    )  # fmt: skip


def to_layout(state: BitLayout, names: tuple[str, ...], mesh: int) -> Layout:
    return Layout(
        tuple(tuple(names[a] for a in axes) for axes in state.dims), tuple(names[a] for a in members(state.pending)),
        tuple(names[a] for a in members(state.replicated)), mesh,
    )  # fmt: skip


def moves(
    layout: Layout,
    shape: tuple[int, ...],
    itemsize: int,
    mesh: Mesh,
    gradient: bool,
    uneven: frozenset[int] = frozenset(),
) -> Iterator[tuple[Move, Layout]]:
    """All legal moves from `layout` on its mesh, each with what it leads to; backward bytes only with `gradient`."""
    names = tuple(axis.name for axis in mesh.axes)
    space = Space(tuple(axis.size for axis in mesh.axes), limits(shape, mesh.size, uneven), uneven)
    whole_bytes = math.prod(shape) * itemsize
    for step in steps(to_state(layout, mesh), space):
        forward = parts_to_bytes(step.forward, space.whole, whole_bytes)
        backward = parts_to_bytes(step.backward, space.whole, whole_bytes) if gradient else 0
        move = Move(step.kind, tuple(names[a] for a in step.axes), step.dim, step.from_dim, forward, backward)
        yield move, to_layout(step.to, names, layout.mesh)


def route(
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    itemsize: int,
    meshes: tuple[Mesh, ...],
    gradient: bool,
    uneven: frozenset[int] = frozenset(),
) -> Route | None:
    """The cheapest chain of moves, then the shortest; None where none is legal."""
    return router(meshes).route(source, target, RoutedValue(shape, itemsize, uneven), gradient)


def distance(
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    itemsize: int,
    meshes: tuple[Mesh, ...],
    gradient: bool,
    uneven: frozenset[int] = frozenset(),
) -> int | None:
    """The cost of `route` in bytes per rank, None where there is none."""
    return router(meshes).distance(source, target, RoutedValue(shape, itemsize, uneven), gradient)
