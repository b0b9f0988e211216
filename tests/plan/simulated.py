"""Layouts as arrays per rank: what a layout claims of a value, and what each move does to ranks' arrays.

What a layout claims is written from the meaning of the states alone (specs/redistribution.md), not from the planner's
code, to judge it; moves are the interpreter's. Values are float64; a rank's array is kept in a list by rank.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from shardlang.interpret.ranks.coordinates import groups_of
from shardlang.interpret.ranks.exchanges import converted, exchange, permuted, row
from shardlang.plan.plan import Move, MoveKind
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

Ranks = list[np.ndarray]


def coordinates(mesh: Mesh, rank: int) -> dict[str, int]:
    return {a.name: mesh.coordinate(rank, a.name) for a in mesh.axes}


def index(axes: tuple[str, ...], at: dict[str, int], mesh: Mesh) -> int:
    """The number of a rank among those that differ along `axes`, first is major."""
    number = 0
    for axis in axes:
        number = number * mesh.axis_size(axis) + at[axis]
    return number


def block(layout: Layout, at: dict[str, int], shape: tuple[int, ...], mesh: Mesh) -> tuple[slice, ...]:
    slices = []
    for size, axes in zip(shape, layout.dims, strict=True):
        each = -(-size // mesh.degree(axes))  # torch.chunk's sizes: the last blocks are smaller, or empty
        first = min(size, index(axes, at, mesh) * each)
        slices.append(slice(first, min(size, first + each)))
    return tuple(slices)


def value_of(parts: Ranks, layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> np.ndarray | None:
    """The whole value that ranks hold under `layout`: pending axes summed; None where I or R ranks then disagree."""
    found: dict[tuple[int, ...], np.ndarray] = {}
    whole = [a.name for a in mesh.axes if layout.state(a.name) in "IR"]
    for rank, part in enumerate(parts):
        at = coordinates(mesh, rank)
        key = tuple(at[a] for a in whole)
        found.setdefault(key, np.zeros(shape))
        found[key][block(layout, at, shape, mesh)] += part
    values = list(found.values())
    return values[0] if all(np.allclose(v, values[0]) for v in values) else None


def scatter(value: np.ndarray, layout: Layout, mesh: Mesh, rng: np.random.Generator) -> Ranks:
    """Ranks' arrays that mean `value` under `layout`, with arbitrary summands.

    I and R ranks agree only after the sum over pending axes, so each of them draws summands of its own.
    """
    summands: dict[tuple[int, ...], list[np.ndarray]] = {}
    pending = layout.pending
    whole = tuple(a.name for a in mesh.axes if layout.state(a.name) in "IR")
    parts = []
    for rank in range(mesh.size):
        at = coordinates(mesh, rank)
        key = tuple(at[a] for a in whole)
        if key not in summands:
            drawn = [rng.standard_normal(value.shape) for _ in range(mesh.degree(pending) - 1)]
            summands[key] = [*drawn, value - sum(drawn)]
        parts.append(summands[key][index(pending, at, mesh)][block(layout, at, value.shape, mesh)].copy())
    return parts


def dual(layout: Layout, mesh: Mesh) -> Layout:
    """The layout of the gradient: S as it is, P and I identical, R pending."""
    return Layout(layout.dims, tuple(a.name for a in mesh.axes if layout.state(a.name) == "R"), (), layout.mesh)


# --- moves, by the interpreter's table ---


def run(move: Move, before: Layout, after: Layout, parts: Ranks, mesh: Mesh) -> Ranks:
    return [x.numpy() for x in converted(list(map(torch.from_numpy, parts)), move, before, after, mesh, mesh)]


def run_back(move: Move, before: Layout, after: Layout, gradients: Ranks, mesh: Mesh) -> Ranks:
    """Their way back to the gradients of what `run` was given."""
    xs = list(map(torch.from_numpy, gradients))
    if move.kind is MoveKind.PERMUTE:
        return [x.numpy() for x in permuted(xs, after, before, mesh, mesh)]
    forth, back = row(move)
    groups = groups_of(mesh, move.axes if move.kind is not MoveKind.VIEW else ())
    return [x.numpy() for x in exchange(xs, groups, back, forth)]


def layouts(
    rank: int, mesh: Mesh, shape: tuple[int, ...], index: int = 0, uneven: frozenset[int] = frozenset()
) -> list[Layout]:
    """Every legal layout of a value of `rank` dims on `mesh`, in every order of axes; `uneven` dims need not divide."""
    names = tuple(a.name for a in mesh.axes)
    found = []
    for places in itertools.product(range(-3, rank), repeat=len(names)):
        on = [tuple(a for a, p in zip(names, places, strict=True) if p == d) for d in range(-3, rank)]
        sized = enumerate(zip(shape, on[3:], strict=True))
        if any(size % mesh.degree(axes) and d not in uneven for d, (size, axes) in sized):
            continue
        for dims in itertools.product(*(itertools.permutations(axes) for axes in on[3:])):
            found.append(Layout(dims, on[1], on[2], index))
    return found
