"""Layouts as algebra, against numpy: what is split over one factoring of the ranks, gathered and split over another, in
blocks of torch.chunk's sizes where dims do not divide, is the same value, and so is its gradient on the way back.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.plan.plan import MoveKind
from shardlang.plan.redistribute.cheapest import Route
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh
from tests.plan import simulated
from tests.plan.routes import route


def factorings(n: int) -> list[tuple[int, ...]]:
    """All ordered ones: 6, 2 * 3, 3 * 2."""
    if n == 1:
        return [()]
    return [(f, *rest) for f in range(2, n + 1) if n % f == 0 for rest in factorings(n // f)]


def mesh_of(sizes: tuple[int, ...], names: str = "abc", name: str = "mesh") -> Mesh:
    return Mesh(tuple(Axis(n, s) for n, s in zip(names, sizes, strict=False)), name)


RANKS = (4, 6, 8, 12)
PAIRS = [p for n in RANKS for p in itertools.product([f for f in factorings(n) if len(f) < 4], repeat=2)]
SHAPES = [((12, 24), ()), ((7, 12), (0,)), ((12, 5), (1,)), ((13, 7), (0, 1)), ((24, 2, 6), (1,))]


def case(data: st.DataObject) -> tuple[Layout, Layout, tuple[int, ...], tuple[Mesh, ...], frozenset[int]]:
    here, there = data.draw(st.sampled_from(PAIRS))
    shape, ragged = data.draw(st.sampled_from(SHAPES))
    uneven = frozenset(ragged)
    meshes = (mesh_of(here), mesh_of(there, "xyz", "mesh2")) if here != there else (mesh_of(here),)
    source = data.draw(st.sampled_from(simulated.layouts(len(shape), meshes[0], shape, 0, uneven)))
    target = data.draw(st.sampled_from(simulated.layouts(len(shape), meshes[-1], shape, len(meshes) - 1, uneven)))
    return source, target, shape, meshes, uneven


def forth(found: Route, source: Layout, parts: simulated.Ranks, meshes: tuple[Mesh, ...]) -> simulated.Ranks:
    at = source
    for move, to in found.moves:
        parts = simulated.run(move, at, to, parts, meshes[at.mesh])
        at = to
    return parts


def back(found: Route, source: Layout, parts: simulated.Ranks, meshes: tuple[Mesh, ...]) -> simulated.Ranks:
    starts = [source, *[to for _, to in found.moves]]
    for (move, to), before in reversed(list(zip(found.moves, starts, strict=False))):
        parts = simulated.run_back(move, before, to, parts, meshes[before.mesh])
    return parts


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_split_gather_and_split_again(data: st.DataObject) -> None:
    source, target, shape, meshes, uneven = case(data)
    found = route(source, target, shape, 4, meshes, True, uneven)
    assert found is not None, (source, target, shape, meshes)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    value, gradient = rng.standard_normal(shape), rng.standard_normal(shape)
    parts = forth(found, source, simulated.scatter(value, source, meshes[0], rng), meshes)
    whole = simulated.value_of(parts, target, shape, meshes[target.mesh])
    assert whole is not None and np.allclose(whole, value), (source, target)
    late = simulated.scatter(gradient, simulated.dual(target, meshes[target.mesh]), meshes[target.mesh], rng)
    whole = simulated.value_of(back(found, source, late, meshes), simulated.dual(source, meshes[0]), shape, meshes[0])
    assert whole is not None and np.allclose(whole, gradient), (source, target)


@pytest.mark.parametrize("size", [1, 5, 6, 7, 11, 12, 13, 25])
@pytest.mark.parametrize(("here", "there"), [((2, 3), (3, 2)), ((6,), (2, 3)), ((2, 3), (6,)), ((4, 3), (2, 6))])
def test_every_block_of_a_dim_that_does_not_divide(here: tuple[int, ...], there: tuple[int, ...], size: int) -> None:
    """One dim over all axes of one factoring, then over all of another: each rank's block, empty ones too."""
    meshes = mesh_of(here), mesh_of(there, "xyz", "mesh2")
    uneven, rng = frozenset((0,)), np.random.default_rng(size)
    value = rng.standard_normal((size, 3))
    every = [
        [Layout((axes, ()), mesh=at) for axes in itertools.permutations([a.name for a in mesh.axes])]
        for at, mesh in enumerate(meshes)
    ]
    for source, target in itertools.product(*every):
        found = route(source, target, value.shape, 4, meshes, True, uneven)
        assert found is not None
        parts = forth(found, source, simulated.scatter(value, source, meshes[0], rng), meshes)
        wanted = simulated.scatter(value, target, meshes[1], rng)
        for mine, theirs in zip(parts, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_every_row_of_the_table_is_on_some_route() -> None:
    """What the examples above draw from reaches each kind of move."""
    seen: set[MoveKind] = set()
    meshes, shape = (mesh_of((2, 3)), mesh_of((3, 2), "xyz", "mesh2")), (12, 24)
    here, there = (simulated.layouts(2, mesh, shape, at) for at, mesh in enumerate(meshes))
    for source, target in [*itertools.product(here, here), *itertools.product(here[::9], there[::9])]:
        found = route(source, target, shape, 4, meshes, True)
        assert found is not None
        seen.update(move.kind for move, _ in found.moves)
    assert seen == set(MoveKind)
