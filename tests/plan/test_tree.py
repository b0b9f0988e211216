"""Trees of conversions: valid, as cheap as exhaustive search finds, and sharing what the calculus says is shared."""

from __future__ import annotations

import itertools
import random

import pytest

from shardlang.plan.plan import MoveKind
from shardlang.plan.redistribute.collective_bytes import RoutedValue
from shardlang.plan.redistribute.steiner_tree import Target, Tree, tree
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh
from tests.plan import simulated
from tests.plan.routes import distance, moves

AB = Mesh((Axis("a", 2), Axis("b", 2)))


def assert_tree(
    found: Tree, source: Layout, targets: list[Target], shape: tuple[int, ...], itemsize: int, mesh: Mesh
) -> None:
    for at, edge in enumerate(found.edges):
        assert edge.parent < at
        here = source if edge.parent < 0 else found.edges[edge.parent].to
        assert (edge.move, edge.to) in list(moves(here, shape, itemsize, mesh, edge.gradient))
    for target, end in zip(targets, found.ends, strict=True):
        assert target.layout == (source if end < 0 else found.edges[end].to)
        while target.gradient and end >= 0:
            assert found.edges[end].gradient
            end = found.edges[end].parent


def exhaustive(source: Layout, targets: list[Layout], shape: tuple[int, ...], mesh: Mesh, gradient: bool) -> int:
    """The least cost with up to two targets joined at one node, or three joined two by two, over all layouts."""
    every = simulated.layouts(len(shape), mesh, shape)
    meshes = (mesh,)
    far = {(x, y): distance(x, y, shape, 1, meshes, gradient) or 0 for x in every for y in [*targets, *every]}

    def pair(x: Layout, y: Layout) -> dict[Layout, int]:
        joined = {v: far[v, x] + far[v, y] for v in every}
        return {v: min(far[v, w] + joined[w] for w in every) for v in every}

    if len(targets) == 2:
        return pair(*targets)[source]
    best = []
    for one in range(3):
        others = [t for i, t in enumerate(targets) if i != one]
        below = pair(*others)
        best.append(min(far[source, w] + far[w, targets[one]] + below[w] for w in every))
    return min(best)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("gradient", [True, False])
def test_as_cheap_as_exhaustive_search(count: int, gradient: bool) -> None:
    shape, rng = (16, 16), random.Random(count)
    every = simulated.layouts(2, AB, shape)
    for _ in range(25):
        source, *rest = rng.sample(every, count + 1)
        targets = [Target(t, gradient) for t in rest]
        found = tree(source, targets, RoutedValue(shape, 1), (AB,))
        assert found is not None
        assert_tree(found, source, targets, shape, 1, AB)
        assert found.cost == exhaustive(source, rest, shape, AB, gradient), (source, rest)


def test_identical_to_replicated_and_split_shares_the_all_reduce() -> None:
    """The all-reduce alone is paid, two thirds of independent chains (9,220 and 6,152 in the calculus's example)."""
    mesh, shape = Mesh((Axis("a", 4),)), (64, 64)
    source, replicated, split = Layout(((), ())), Layout(((), ()), (), ("a",)), Layout((("a",), ()))
    alone = [distance(source, t, shape, 1, (mesh,), True) for t in (replicated, split)]
    assert alone == [6144, 3072]
    found = tree(source, [Target(split), Target(replicated)], RoutedValue(shape, 1), (mesh,))
    assert found is not None
    assert found.cost == 6144
    assert [(e.parent, e.move.kind) for e in found.edges] == [(-1, MoveKind.I_TO_R), (0, MoveKind.R_TO_S)]
    assert found.ends == (1, 0)


def test_three_projections_of_one_activation_share_one_conversion() -> None:
    source, target = Layout((("a",), ())), Layout((("a",), ()), (), ("b",))
    found = tree(source, [Target(target)] * 3, RoutedValue((16, 16), 4), (AB,))
    assert found is not None
    assert (len(found.edges), found.ends) == (1, (0, 0, 0))


def test_users_without_gradient_pay_no_backward_and_hang_anywhere() -> None:
    source = Layout(((), ("a",)), ("b",))
    trained, metric = Target(Layout(((), ("a",)), (), ("b",))), Target(Layout(((), ())), False)
    found = tree(source, [metric, trained], RoutedValue((16, 16), 1), (AB,))
    assert found is not None
    assert_tree(found, source, [metric, trained], (16, 16), 1, AB)
    plain = tree(source, [trained], RoutedValue((16, 16), 1), (AB,))
    assert plain is not None
    assert found.cost == plain.cost + 128
    assert all(e.gradient or e.move.backward_bytes == 0 for e in found.edges)


def test_many_targets_and_axes() -> None:
    mesh, shape, rng = Mesh(tuple(Axis(n, 2) for n in "abc")), (64, 64), random.Random(0)
    every = simulated.layouts(2, mesh, shape)
    for count in (2, 4, 6):
        source, *rest = rng.sample(every, count + 1)
        targets = [Target(t, i % 3 != 2) for i, t in enumerate(rest)]
        found = tree(source, targets, RoutedValue(shape, 1), (mesh,))
        assert found is not None
        assert_tree(found, source, targets, shape, 1, mesh)
        alone = sum(distance(source, t.layout, shape, 1, (mesh,), t.gradient) or 0 for t in targets)
        assert found.cost <= alone
        assert tree(source, targets, RoutedValue(shape, 1), (mesh,)) == found


def test_the_order_of_targets_does_not_change_the_cost() -> None:
    every, rng = simulated.layouts(2, AB, (16, 16)), random.Random(5)
    source, *rest = rng.sample(every, 4)
    costs = {
        t.cost
        for order in itertools.permutations(rest)
        if (t := tree(source, [Target(x) for x in order], RoutedValue((16, 16), 1), (AB,))) is not None
    }
    assert len(costs) == 1


def test_no_tree_where_a_target_cannot_be_reached() -> None:
    assert tree(Layout(((),)), [Target(Layout((("a",),)))], RoutedValue((3,), 4), (AB,)) is None


def test_no_targets_no_edges() -> None:
    assert tree(Layout(((),)), [], RoutedValue((4,), 4), (AB,)) == Tree((), ())


def test_a_tree_over_two_meshes() -> None:
    meshes = Mesh((Axis("a", 2), Axis("b", 3))), Mesh((Axis("c", 3), Axis("d", 2)), "mesh2")
    source = Layout((("a", "b"), ()))
    targets = [Target(Layout((("c", "d"), ()), mesh=1)), Target(Layout(((), ("c",)), (), ("d",), mesh=1))]
    found = tree(source, targets, RoutedValue((12, 12), 1), meshes)
    assert found is not None
    assert found.edges[0].move.kind is MoveKind.VIEW
    assert found.ends[0] == 0
