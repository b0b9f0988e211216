"""Chains made by rule, axes that go together, and routes on meshes of many axes: right, and found at once."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.plan.redistribute.axis_groups import axis_groups
from shardlang.plan.redistribute.collective_bytes import Space, limits, steps
from shardlang.plan.redistribute.greedy import greedy
from shardlang.plan.redistribute.searches import EXACT_AXES
from shardlang.types.layout import Layout
from shardlang.types.mesh import Mesh
from tests.plan import simulated
from tests.plan.routes import distance, route, to_state
from tests.plan.test_routes import mesh_of
from tests.spent import at_most

CASES = [
    ((2, 2), (8, 8), frozenset()), ((2, 3), (36, 12), frozenset()), ((2, 2, 2), (16, 8), frozenset()),
    ((2, 2), (5, 8), frozenset({0})), ((2, 3), (7, 9), frozenset({0, 1})), ((2, 2, 2), (8, 5), frozenset({1})),
]  # fmt: skip


def every(shape: tuple[int, ...], mesh: Mesh, uneven: frozenset[int]) -> list[Layout]:
    """All layouts; of uneven dims as if their size divided."""
    whole = tuple(mesh.size if d in uneven else n for d, n in enumerate(shape))
    return simulated.layouts(2, mesh, whole)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_chain_by_rule_is_legal_and_arrives(data: st.DataObject) -> None:
    sizes, shape, uneven = data.draw(st.sampled_from(CASES))
    mesh = mesh_of(*sizes)
    layouts = every(shape, mesh, uneven)
    source, target = data.draw(st.sampled_from(layouts)), data.draw(st.sampled_from(layouts))
    space = Space(sizes, limits(shape, mesh.size, uneven), uneven)
    at, cost = to_state(source, mesh), 0
    for step in greedy(at, to_state(target, mesh), space):
        assert step in steps(at, space)
        at, cost = step.to, cost + step.forward + step.backward
    assert at == to_state(target, mesh)
    least = distance(source, target, shape, 1, (mesh,), True, uneven)
    assert least is not None
    assert math.ceil(cost * math.prod(shape) / space.whole) >= least


def cut(rng: random.Random, mesh: Mesh, dims: int) -> Layout:
    """A random layout on a mesh of axes of 2, of dims that every axis divides."""
    names = [axis.name for axis in mesh.axes]
    rng.shuffle(names)
    places: list[list[str]] = [[] for _ in range(dims + 3)]
    for name in names:
        rng.choice(places).append(name)
    order = [axis.name for axis in mesh.axes]
    pending, replicated = (tuple(sorted(p, key=order.index)) for p in places[dims : dims + 2])
    return Layout(tuple(map(tuple, places[:dims])), pending, replicated)


@pytest.mark.parametrize("count", [4, 5, 6, 8])
def test_routes_over_many_axes_are_found_at_once(count: int) -> None:
    rng, mesh, shape = random.Random(count), mesh_of(*([2] * count)), (2**8,) * 4
    with at_most(20):
        for _ in range(10):
            source, target = cut(rng, mesh, 4), cut(rng, mesh, 4)
            found = route(source, target, shape, 4, (mesh,), True)
            assert found is not None
            assert found.moves[-1][1] == target
            assert found.cost == sum(m.forward_bytes + m.backward_bytes for m, _ in found.moves)


def test_axes_go_together_that_no_layout_takes_apart() -> None:
    source = Layout((("a", "b", "c"), ("d",)), ("e", "f"))
    target = Layout((("c",), ("a", "b")), (), ("e", "f"))
    assert axis_groups([source, target], "abcdef") == (("a", "b"), ("c",), ("d",), ("e", "f"))
    assert axis_groups([source, target, Layout((("b",), ()))], "abcdef") == (*((a,) for a in "abcd"), ("e", "f"))
    assert axis_groups([source, Layout(((), ("d", "c")))], "abcd") == (("a", "b"), ("c",), ("d",))


def test_what_goes_together_costs_as_on_a_coarse_mesh() -> None:
    """Four axes, of which two pairs go together: the exact cost of the mesh of two."""
    fine, coarse = mesh_of(2, 2, 2, 2), mesh_of(4, 4)
    assert len(fine.axes) > EXACT_AXES
    here, there = Layout((("a", "b"), ("c", "d"))), Layout((("c", "d"), ("a", "b")))
    cost = route(here, there, (16, 16), 1, (fine,), True)
    same = route(Layout((("a",), ("b",))), Layout((("b",), ("a",))), (16, 16), 1, (coarse,), True)
    assert cost is not None and same is not None
    assert cost.cost == same.cost
