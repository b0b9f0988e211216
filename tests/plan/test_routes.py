"""Routes: as cheap as Dijkstra over plain moves finds, right on simulated ranks, and the calculus's examples."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.plan.plan import MoveKind
from shardlang.plan.redistribute.cheapest import Route, Router, forget, router
from shardlang.plan.redistribute.collective_bytes import BitLayout, RoutedValue, Space, steps
from shardlang.plan.redistribute.least_parts import least_parts
from shardlang.plan.redistribute.mesh_factorings import bridges, translate
from shardlang.plan.redistribute.searches import TIE, Engine, Nearest, Search, engine
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh
from tests.plan import simulated
from tests.plan.routes import distance, moves, route
from tests.spent import at_most


def mesh_of(*sizes: int, name: str = "mesh") -> Mesh:
    return Mesh(tuple(Axis(n, s) for n, s in zip("abcdefgh", sizes, strict=False)), name)


def brute(source: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh, gradient: bool) -> dict[Layout, int]:
    """Least cost to every layout, by Dijkstra over `moves` without any reduction of the problem."""
    best, done, count = {source: 0}, set(), itertools.count()
    heap = [(0, next(count), source)]
    while heap:
        cost, _, at = heapq.heappop(heap)
        if at in done:
            continue
        done.add(at)
        for move, to in moves(at, shape, itemsize, mesh, gradient):
            total = cost + move.forward_bytes + move.backward_bytes
            if total < best.get(to, total + 1):
                best[to] = total
                heapq.heappush(heap, (total, next(count), to))
    return best


def assert_chain(
    found: Route, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh, gradient: bool
) -> None:
    """Each step is one of `moves`, the last leads to the target, and the costs add up."""
    at = source
    for move, to in found.moves:
        assert (move, to) in list(moves(at, shape, itemsize, mesh, gradient))
        at = to
    assert at == target
    assert found.cost == sum(m.forward_bytes + m.backward_bytes for m, _ in found.moves)


@pytest.mark.parametrize(
    ("sizes", "shape", "sources"),
    [
        ((2, 2), (16, 16), 100),
        ((2, 4), (64, 64), 100),
        ((2, 2), (16, 32, 48), 6),
        ((2, 2, 2), (64, 64), 3),
        ((2, 4), (64, 4), 6),
        ((2, 3), (36, 36), 10),
        ((2, 2), (1, 16), 10),
    ],
)
@pytest.mark.parametrize("gradient", [True, False])
def test_as_cheap_as_brute_force(sizes: tuple[int, ...], shape: tuple[int, ...], sources: int, gradient: bool) -> None:
    mesh = mesh_of(*sizes)
    every = simulated.layouts(len(shape), mesh, shape)
    for source in every[:: max(1, len(every) // sources)]:
        best = brute(source, shape, 4, mesh, gradient)
        assert set(best) == set(every)
        for target in every:
            assert distance(source, target, shape, 4, (mesh,), gradient) == best[target], (source, target)
        for target in every[:: 1 + len(every) // 12]:
            found = route(source, target, shape, 4, (mesh,), gradient)
            assert found is not None
            assert_chain(found, source, target, shape, 4, mesh, gradient)


CALCULUS = [
    ("cut b before a's I -> R: 256, the other way round 384", Layout(((), ())), Layout(((), ("b",)), (), ("a",)), 256),
    ("cut b, then all-to-all a: 128, peeling first 321", Layout(((), ("a",))), Layout((("b", "a"), ())), 128),
    ("not axis by axis: a must come first", Layout(((), ())), Layout(((), ("b", "a"))), 192),
]


@pytest.mark.parametrize(("why", "source", "target", "cost"), CALCULUS)
def test_the_examples_of_the_calculus(why: str, source: Layout, target: Layout, cost: int) -> None:
    """Elements are counted there: one byte each here, on a value of 256."""
    assert distance(source, target, (16, 16), 1, (mesh_of(2, 2),), True) == cost, why


def test_fused_moves_are_one() -> None:
    mesh = mesh_of(2, 4)
    found = route(Layout(((), ()), ("a", "b")), Layout(((), ())), (16, 16), 1, (mesh,), False)
    assert found is not None
    assert [(m.kind, m.axes, m.forward_bytes) for m, _ in found.moves] == [(MoveKind.P_TO_I, ("a", "b"), 448)]
    found = route(Layout((("a", "b"), ())), Layout(((), ("a", "b"))), (16, 16), 1, (mesh,), True)
    assert found is not None
    assert [(m.kind, m.axes, m.from_dim, m.dim) for m, _ in found.moves] == [(MoveKind.S_TO_S, ("a", "b"), 0, 1)]


def test_without_gradient_identical_and_replicated_are_one() -> None:
    mesh = mesh_of(2, 4)
    assert distance(Layout(((),)), Layout(((),), (), ("a", "b")), (16,), 4, (mesh,), False) == 0
    assert distance(Layout(((),)), Layout(((),), (), ("a", "b")), (16,), 4, (mesh,), True) == 112


SPACES = [
    Space((2, 2), (4, 4, 4), frozenset({1})), Space((2, 4), (8, 8), frozenset({0})), Space((2, 2, 2), (2, 8)),
    Space((2, 2, 2), (8, 8), frozenset({0})), Space((4, 2, 2), (4, 16)), Space((2, 3), (6, 6), frozenset({0, 1})),
    Space((2, 2, 4), (2, 4, 16)), Space((2, 2, 2), (2, 8, 8, 4)),
]  # fmt: skip


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("gradient", [True, False])
def test_the_least_parts_are_those_of_the_chain(space: Space, gradient: bool) -> None:
    """They are looked for among fewer moves, in a space without limits, from a source that is alike."""
    whole = Engine(space)
    every = list(whole.search(BitLayout(((),) * len(space.limits), 0, 0), gradient).within(1 << 40))
    states = [whole.states[node] for node in every]
    too_fine = BitLayout(((0, 1), *((),) * (len(space.limits) - 1)), 0, 0)
    for source in [*states[:: max(1, len(states) // 12)], too_fine]:
        search = whole.search(source, gradient)
        for target in states:
            weight = search.weight(target)
            assert least_parts(space, source, target, gradient) == (None if weight is None else weight // TIE)


@pytest.mark.parametrize("space", [space for space in SPACES if {*space.limits} != {space.ranks}])
def test_spaces_that_share_moves_have_their_own(space: Space) -> None:
    alone, sharing = Engine(space), Engine(space)
    alone._free = None
    rest = ((),) * (len(space.limits) - 1)
    for state in [BitLayout(((), *rest), 0, 0), BitLayout(((0, 1), *rest), 0, 0)]:
        reached = Search(alone, alone.number(state), True).within(1 << 40)
        assert len(reached) > 10
        for node in reached:
            assert sharing.edges(node, True) == alone.edges(node, True)


def test_no_way_to_a_cut_that_does_not_divide() -> None:
    mesh = mesh_of(2, 4)
    assert distance(Layout(((),)), Layout((("b",),)), (6,), 4, (mesh,), True) is None
    assert distance(Layout(((),)), Layout((("b",),)), (6,), 4, (mesh,), True, frozenset({0})) == 18


def test_moves_that_are_made_when_needed_lead_where_all_moves_do() -> None:
    """Searches of four axes, beside the plain one that makes all moves of each layout."""
    draws, found = random.Random(4), 0
    for _ in range(12):
        sizes = tuple(draws.choices((2, 2, 3, 4), k=4))
        ranks = math.prod(sizes)
        space = Space(sizes, (ranks, draws.choice((ranks, sizes[0])), sizes[1]), frozenset(draws.sample(range(3), 1)))
        gradient, of = draws.random() < 0.5, engine(space)
        source = BitLayout(((0, 1), (), ()), 1 << 2, draws.choice((0, 1 << 3)))
        plain, lazy = Search(of, of.number(source), gradient), Nearest(of, of.number(source), gradient)
        for target in draws.sample([hop.to for hop in steps(source, space)], 3):
            for further in draws.sample([hop.to for hop in steps(target, space)], 2):
                assert plain.weight(further) == lazy.weight(further)
                if plain.weight(further) is not None:
                    assert plain.chain(further) == lazy.chain(further)
                    found += 1
    assert found > 30


def test_a_mesh_of_many_axes_begins_with_nothing_remembered() -> None:
    few, many = (tuple([Mesh(tuple(Axis(f"a{i}", 2) for i in range(n)))]) for n in (3, 4))
    for meshes, anew in ((few, False), (many, True)):
        before = router(meshes)
        assert forget(meshes) == anew and (router(meshes) is before) == (not anew)


def test_axes_of_size_one_are_renamed() -> None:
    mesh = Mesh((Axis("dp", 1), Axis("mp", 4), Axis("cp", 1)))
    source, target = Layout((("dp", "mp"), ()), ("cp",)), Layout((("cp",), ("mp",)), (), ("dp",))
    found = route(source, target, (16, 16), 1, (mesh,), True)
    assert found is not None
    assert [m.kind for m, _ in found.moves] == [MoveKind.VIEW, MoveKind.S_TO_S]
    assert found.moves[-1][1] == target
    found = route(Layout((("dp", "mp"), ())), Layout((("dp",), ()), (), ("mp",)), (16, 16), 1, (mesh,), True)
    assert found is not None
    assert [(m.kind, to) for m, to in found.moves] == [(MoveKind.S_TO_R, Layout((("dp",), ()), (), ("mp",)))]


def test_agreeing_axes_of_large_meshes_stay() -> None:
    mesh = mesh_of(2, 2, 2, 2, 2)
    source = Layout((("a", "c"), (), ()), ("d",), ("b",))
    target = Layout((("a",), ("c",), ()), (), ("b", "d"))
    found = route(source, target, (32, 32, 32), 1, (mesh,), True)
    assert found is not None
    assert_chain(found, source, target, (32, 32, 32), 1, mesh, True)
    assert all(to.dims[0][:1] == ("a",) and "b" in to.replicated for _, to in found.moves)


def test_many_dims() -> None:
    mesh = mesh_of(2, 4)
    source, target = Layout(((), (), ("b",), (), (), ())), Layout((("a",), (), (), (), (), ("b",)))
    found = route(source, target, (8,) * 6, 1, (mesh,), True)
    assert found is not None
    assert_chain(found, source, target, (8,) * 6, 1, mesh, True)


def test_results_do_not_depend_on_what_was_asked_before() -> None:
    mesh, shape = mesh_of(2, 2, 2), (24, 24)
    every = simulated.layouts(2, mesh, shape)[::7]
    pairs = list(zip(every, reversed(every), strict=True))

    def all_routes(order: list[tuple[Layout, Layout]]) -> dict[tuple[Layout, Layout], object]:
        engine.cache_clear()
        fresh = Router((mesh,))
        routes = {p: fresh.route(*p, RoutedValue(shape, 4), True) for p in order}
        return {p: found and (found.cost, found.moves) for p, found in routes.items()}

    assert all_routes(pairs) == all_routes(pairs[::-1])


# --- between meshes ---

PAIRS = [
    ((2, 3), (3, 2), (12, 36)),
    ((2, 6), (3, 4), (12, 24)),
    ((2, 2, 3), (2, 3, 2), (24, 12)),
    ((4,), (2, 2), (8, 4)),
]


@pytest.mark.parametrize(("here", "there", "shape"), PAIRS)
def test_bridges_mean_the_same_on_both_meshes(
    here: tuple[int, ...], there: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    rng, first, second = np.random.default_rng(0), mesh_of(*here), mesh_of(*there)
    count = 0
    for out, into in bridges(first, second, shape, frozenset(), 0, 1):
        count += 1
        assert translate(out, first, second, 1) == into
        value = rng.standard_normal(shape)
        for mine, theirs in ((out, into), (simulated.dual(out, first), simulated.dual(into, second))):
            parts = simulated.scatter(value, mine, first, rng)
            found = simulated.value_of(parts, theirs, shape, second)
            assert found is not None and np.allclose(found, value)
    assert count >= 4


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_routes_between_meshes_keep_value_and_gradient(data: st.DataObject) -> None:
    here, there, shape = data.draw(st.sampled_from(PAIRS))
    meshes = mesh_of(*here), mesh_of(*there, name="mesh2")
    source = data.draw(st.sampled_from(simulated.layouts(2, meshes[0], shape)))
    target = data.draw(st.sampled_from(simulated.layouts(2, meshes[1], shape, 1)))
    found = route(source, target, shape, 4, meshes, True)
    assert found is not None
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    value, gradient = rng.standard_normal(shape), rng.standard_normal(shape)
    parts, at, trail = simulated.scatter(value, source, meshes[0], rng), source, []
    for move, to in found.moves:
        parts = simulated.run(move, at, to, parts, meshes[at.mesh])
        trail.append((move, at, to))
        at = to
    assert at == target
    whole = simulated.value_of(parts, target, shape, meshes[1])
    assert whole is not None and np.allclose(whole, value)
    parts = simulated.scatter(gradient, simulated.dual(target, meshes[1]), meshes[1], rng)
    for move, before, after in reversed(trail):
        parts = simulated.run_back(move, before, after, parts, meshes[before.mesh])
    whole = simulated.value_of(parts, simulated.dual(source, meshes[0]), shape, meshes[0])
    assert whole is not None and np.allclose(whole, gradient)


def test_remembered_distances_are_fast() -> None:
    meshes = (mesh_of(2, 4),)
    source, target = Layout((("a",), ("b",))), Layout(((), ("a",)), (), ("b",))
    distance(source, target, (64, 64), 4, meshes, True)
    with at_most(0.5):
        for _ in range(20_000):
            distance(source, target, (64, 64), 4, meshes, True)
