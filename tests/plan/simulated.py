"""Layouts as arrays per rank: what a layout claims of a value, and what each move does to ranks' arrays, by definition.

Written from the meaning of the states alone (specs/redistribution.md), not from the planner's code, to judge it.
Values are float64; a rank's array is kept in a list by rank.
"""

from __future__ import annotations

import itertools

import numpy as np

from shardlang.plan.plan import Move, MoveKind
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh

Ranks = list[np.ndarray]
TRANSPOSED = {"S": "S", "P": "I", "I": "I", "R": "P"}


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


def chunks(x: np.ndarray, count: int, dim: int) -> list[np.ndarray]:
    """x in blocks along `dim`, as `block` has them."""
    each = -(-x.shape[dim] // count)
    return np.split(x, [min(x.shape[dim], i * each) for i in range(1, count)], dim)


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


# --- moves, forward ---


def groups(mesh: Mesh, axes: tuple[str, ...]) -> list[list[int]]:
    """Rank groups over `axes`, members in the order of `axes`, first is major."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for rank in range(mesh.size):
        at = coordinates(mesh, rank)
        key = tuple(at[a.name] for a in mesh.axes if a.name not in axes)
        found.setdefault(key, []).append((index(axes, at, mesh), rank))
    return [[rank for _, rank in sorted(members)] for members in found.values()]


def per_group(parts: Ranks, mesh: Mesh, axes: tuple[str, ...], change) -> Ranks:  # type: ignore[no-untyped-def]
    out: Ranks = [np.zeros(0)] * len(parts)
    for members in groups(mesh, axes):
        for rank, array in zip(members, change([parts[m] for m in members]), strict=True):
            out[rank] = array
    return out


def nothing(xs: Ranks) -> Ranks:
    return xs


def all_reduce(xs: Ranks) -> Ranks:
    return [sum(xs[1:], xs[0])] * len(xs)


def mask(xs: Ranks) -> Ranks:
    return [x if i == 0 else np.zeros_like(x) for i, x in enumerate(xs)]


def gather(dim: int):  # type: ignore[no-untyped-def]
    return lambda xs: [np.concatenate(xs, dim)] * len(xs)


def cut(dim: int):  # type: ignore[no-untyped-def]
    return lambda xs: [chunks(x, len(xs), dim)[i] for i, x in enumerate(xs)]


def reduce_scatter(dim: int):  # type: ignore[no-untyped-def]
    return lambda xs: chunks(sum(xs[1:], xs[0]), len(xs), dim)


def zero_pad(dim: int):  # type: ignore[no-untyped-def]
    return lambda xs: [
        np.concatenate([x if i == j else np.zeros_like(y) for j, y in enumerate(xs)], dim) for i, x in enumerate(xs)
    ]


def all_to_all(from_dim: int, dim: int):  # type: ignore[no-untyped-def]
    return lambda xs: [np.concatenate([chunks(x, len(xs), dim)[i] for x in xs], from_dim) for i in range(len(xs))]


def rows(move: Move):  # type: ignore[no-untyped-def]
    """Forward and backward of a row of the table, over the members of one group."""
    dim, from_dim, kind = move.dim, move.from_dim, MoveKind
    return {
        kind.I_TO_R: (nothing, all_reduce),
        kind.P_TO_I: (all_reduce, nothing),
        kind.P_TO_R: (all_reduce, all_reduce),
        kind.P_TO_S: (reduce_scatter(dim), gather(dim)),
        kind.S_TO_R: (gather(dim), reduce_scatter(dim)),
        kind.S_TO_I: (gather(dim), cut(dim)),
        kind.I_TO_S: (cut(dim), gather(dim)),
        kind.R_TO_S: (cut(dim), zero_pad(dim)),
        kind.S_TO_P: (zero_pad(dim), cut(dim)),
        kind.S_TO_S: (all_to_all(from_dim, dim), all_to_all(dim, from_dim)),
        kind.I_TO_P: (mask, nothing),
        kind.R_TO_P: (mask, mask),
        kind.R_TO_I: (nothing, mask),
    }[move.kind]


def run(move: Move, before: Layout, after: Layout, parts: Ranks, mesh: Mesh) -> Ranks:
    if move.kind is MoveKind.PERMUTE:
        return [parts[s] for s in permuted_from(before, after, mesh)]
    if move.kind is MoveKind.VIEW:
        return parts
    return per_group(parts, mesh, move.axes, rows(move)[0])


def run_back(move: Move, before: Layout, after: Layout, gradients: Ranks, mesh: Mesh) -> Ranks:
    if move.kind is MoveKind.PERMUTE:
        found = permuted_from(before, after, mesh)
        return [gradients[found.index(rank)] for rank in range(mesh.size)]
    if move.kind is MoveKind.VIEW:
        return gradients
    return per_group(gradients, mesh, move.axes, rows(move)[1])


def permuted_from(before: Layout, after: Layout, mesh: Mesh) -> list[int]:
    """Per rank the rank whose array it takes: the one with its block of each dim and its number in P, R and I."""
    held = {_place(before, rank, mesh): rank for rank in range(mesh.size)}
    return [held[_place(after, rank, mesh)] for rank in range(mesh.size)]


def _place(layout: Layout, rank: int, mesh: Mesh) -> tuple[int, ...]:
    at = coordinates(mesh, rank)
    rest = tuple(a.name for a in mesh.axes if layout.state(a.name) == "I")
    return tuple(index(axes, at, mesh) for axes in (*layout.dims, layout.pending, layout.replicated, rest))


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
