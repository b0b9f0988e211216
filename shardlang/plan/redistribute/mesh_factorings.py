"""Device matrices to meshes: their common refinement where there is one, else several meshes and
bridges between them.

Pure integers and names. Which operators have matrices is strategy's; what a bridge costs is
cheapest.py's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, permutations, product

from shardlang.frozen.records import dataclass
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh

LETTERS = "abcdefghijklmnopqrstuvwxyz"
EXACT_GROUPS = 12


def suffix_products(matrix: Sequence[int]) -> tuple[int, ...]:
    """1 and the products of the last n sizes, ascending, each once: [2, 4, 1] gives (1, 4, 8)."""
    found = [1]
    for size in reversed(matrix):
        if size > 1:
            found.append(found[-1] * size)
    return tuple(found)


def refine(matrices: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The coarsest axes, outermost first, of which every matrix's axes are products; None where
    there are none.

    They are the quotients of the sorted union of all suffix products, which must be a chain of
    divisors."""
    marks = sorted({s for m in matrices for s in suffix_products(m)})
    steps = list(pairwise(marks))
    if any(high % low for low, high in steps):
        return None
    return tuple(high // low for low, high in reversed(steps))


def split_axes(matrix: Sequence[int], refined: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Per axis of `matrix` the numbers of the refined axes that make it up, major first; () for
    size 1.

    `refined` must refine `matrix` (ValueError if not)."""
    left, found = len(refined), []
    for size in reversed(matrix):
        mine: list[int] = []
        while math.prod(refined[i] for i in mine) < size and left:
            left -= 1
            mine.insert(0, left)
        if math.prod(refined[i] for i in mine) != size:
            raise ValueError(f"{tuple(refined)} does not refine {tuple(matrix)}")
        found.append(tuple(mine))
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class Grouping:
    """mesh_of[i]: the mesh of matrix i; axes_of[i][j]: the axes of its axis j, major first."""

    meshes: tuple[Mesh, ...]
    mesh_of: tuple[int, ...]
    axes_of: tuple[tuple[tuple[str, ...], ...], ...]


def group(named: Sequence[tuple[str, int]], matrices: Sequence[tuple[int, ...]]) -> Grouping:
    """As few meshes as will do; the first refines the named axes (or, without any, the first
    matrix).

    All products must be equal. A named axis that is not split keeps its name, `dp` split is `dp0`,
    `dp1`; an axis that no named one covers is `a`, `b`, `c`, ..., each once over all meshes.
    `axes_of` ends with the named axes' own entry where there are named axes (so `axes_of[-1]` maps
    each to its parts)."""
    every = [*matrices, tuple(size for _, size in named)] if named else list(matrices)
    mesh_of = _fewest_groups([every[-1], *every[:-1]] if named else every)
    if named:
        mesh_of = [*mesh_of[1:], mesh_of[0]]
    meshes: list[Mesh] = []
    for index in range(max(mesh_of, default=-1) + 1):
        refined = refine([m for m, home in zip(every, mesh_of, strict=True) if home == index]) or ()
        taken = {a.name for mesh in meshes for a in mesh.axes} | {name for name, _ in named}
        names = _names(refined, named if index == 0 else (), taken)
        meshes.append(Mesh(tuple(map(Axis, names, refined)), "mesh" if index == 0 else f"mesh{index + 1}"))
    axes_of = tuple(
        tuple(
            tuple(meshes[mesh_of[i]].axes[k].name for k in ks)
            for ks in split_axes(m, tuple(a.size for a in meshes[mesh_of[i]].axes))
        )
        for i, m in enumerate(every)
    )
    return Grouping(tuple(meshes), tuple(mesh_of), axes_of)


def _fewest_groups(matrices: Sequence[tuple[int, ...]]) -> list[int]:
    """Per matrix its group, the first matrix in group 0.

    A set has a refinement iff its pairs have (chains of divisors are pairwise), so this is
    colouring a graph; exact up to EXACT_GROUPS different matrices, else first-fit."""
    kinds = list(dict.fromkeys(suffix_products(m) for m in matrices))
    clash = [[any(a % b and b % a for a in x for b in y) for y in kinds] for x in kinds]
    most = len(kinds) if len(kinds) > EXACT_GROUPS else 1
    while (homes := _colour([], clash, most)) is None:
        most += 1
    return [homes[kinds.index(suffix_products(m))] for m in matrices]


def _colour(homes: list[int], clash: list[list[bool]], most: int) -> list[int] | None:
    kind = len(homes)
    if kind == len(clash):
        return homes
    for home in range(min(most, max(homes, default=-1) + 2)):
        if not any(clash[kind][other] for other in range(kind) if homes[other] == home):
            found = _colour([*homes, home], clash, most)
            if found is not None:
                return found
    return None


def _names(refined: tuple[int, ...], named: Sequence[tuple[str, int]], taken: set[str]) -> list[str]:
    names: dict[int, str] = {}
    if named:
        for (name, _), parts in zip(named, split_axes([s for _, s in named], refined), strict=True):
            names.update({k: name if len(parts) == 1 else f"{name}{i}" for i, k in enumerate(parts)})
    letters = (x for x in _letters() if x not in taken and x not in names.values())
    return [names[k] if k in names else next(letters) for k in range(len(refined))]


def _letters() -> Iterator[str]:
    length = 1
    while True:
        yield from ("".join(x) for x in product(LETTERS, repeat=length))
        length += 1


# --- bridges between meshes that have no common refinement ---


@dataclass(frozen=True, slots=True)
class MeshFactor:
    """Ranks between two neighbouring common suffix products: the axes of both meshes."""

    size: int
    here: tuple[str, ...]
    there: tuple[str, ...]


@lru_cache(maxsize=256)
def segments(here: Mesh, there: Mesh) -> tuple[MeshFactor, ...]:
    """Outermost first. The meshes must have equally many ranks; no segment has axes of size 1."""
    marks = [set(suffix_products([a.size for a in mesh.axes])) for mesh in (here, there)]
    common = sorted(marks[0] & marks[1])
    return tuple(
        MeshFactor(high // low, _between(here, low, high), _between(there, low, high))
        for low, high in reversed(list(pairwise(common)))
    )


def _between(mesh: Mesh, low: int, high: int) -> tuple[str, ...]:
    return tuple(a.name for a in mesh.axes if a.size > 1 and low <= mesh.stride(a.name) < high)


def translate(layout: Layout, here: Mesh, there: Mesh, mesh: int) -> Layout | None:
    """The layout on `there` (index `mesh`) that means what `layout` does on `here`; None where none
    is known to.

    One is where each segment is all I, all R, all P, or all on one dim, contiguous and in rank
    order."""
    pieces = segments(here, there)
    states = [{layout.state(a) for a in s.here} for s in pieces]
    if any(len(x) > 1 for x in states):
        return None
    names: Mapping[tuple[str, ...], tuple[str, ...]] = {s.here: s.there for s in pieces}
    unit = {a.name for a in here.axes if a.size == 1}
    dims: list[tuple[str, ...]] = []
    for axes in layout.dims:
        found = _translate_dim(tuple(a for a in axes if a not in unit), names)
        if found is None:
            return None
        dims.append(found)
    marks = [
        tuple(b for s, x in zip(pieces, states, strict=True) if x == {mark} for b in s.there) for mark in ("P", "R")
    ]
    return Layout(tuple(dims), marks[0], marks[1], mesh)


def _translate_dim(axes: tuple[str, ...], names: Mapping[tuple[str, ...], tuple[str, ...]]) -> tuple[str, ...] | None:
    found: tuple[str, ...] = ()
    while axes:
        mine = next((s for s in names if axes[: len(s)] == s), None)
        if mine is None:
            return None
        found += names[mine]
        axes = axes[len(mine) :]
    return found


def bridges(
    here: Mesh, there: Mesh, shape: tuple[int, ...], uneven: frozenset[int], mesh_here: int, mesh_there: int
) -> Iterator[tuple[Layout, Layout]]:
    """All legal layouts on `here` with their equals on `there`."""
    pieces = segments(here, there)
    rank = len(shape)
    for places in product(range(-3, rank), repeat=len(pieces)):
        on = [[s for s, p in zip(pieces, places, strict=True) if p == d] for d in range(rank)]
        if any(d not in uneven and shape[d] % math.prod(s.size for s in on[d]) for d in range(rank)):
            continue
        marks = [[s for s, p in zip(pieces, places, strict=True) if p == mark] for mark in (-1, -2)]
        for orders in product(*(permutations(x) for x in on)):
            yield (
                Layout(
                    tuple(tuple(a for s in o for a in s.here) for o in orders),
                    _axes(marks[0], True),
                    _axes(marks[1], True),
                    mesh_here,
                ),
                Layout(
                    tuple(tuple(a for s in o for a in s.there) for o in orders),
                    _axes(marks[0], False),
                    _axes(marks[1], False),
                    mesh_there,
                ),
            )


def _axes(pieces: list[MeshFactor], here: bool) -> tuple[str, ...]:
    return tuple(a for s in pieces for a in (s.here if here else s.there))
