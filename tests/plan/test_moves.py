"""Each move, on simulated ranks: forward it keeps the value, backward it is the adjoint and keeps the gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.plan.plan import MoveKind
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh
from tests.plan import simulated
from tests.plan.routes import moves

MESHES = [
    (Mesh((Axis("a", 2), Axis("b", 2))), (4, 8)),
    (Mesh((Axis("a", 2), Axis("b", 4))), (8, 8)),
    (Mesh((Axis("a", 2), Axis("b", 3))), (6, 12)),
    (Mesh((Axis("a", 2), Axis("b", 2), Axis("c", 2))), (8, 4)),
    (Mesh((Axis("a", 2), Axis("b", 2), Axis("c", 4))), (16, 4)),
]


def check(layout: Layout, shape: tuple[int, ...], mesh: Mesh, seed: int, sample: int) -> None:
    rng = np.random.default_rng(seed)
    value = rng.standard_normal(shape)
    parts = simulated.scatter(value, layout, mesh, rng)
    every = list(moves(layout, shape, 4, mesh, True))
    for at in rng.permutation(len(every))[:sample]:
        move, to = every[at]
        moved = simulated.run(move, layout, to, parts, mesh)
        found = simulated.value_of(moved, to, shape, mesh)
        assert found is not None and np.allclose(found, value), (layout, move, to)
        gradient = rng.standard_normal(shape)
        received = simulated.scatter(gradient, simulated.dual(to, mesh), mesh, rng)
        back = simulated.run_back(move, layout, to, received, mesh)
        found = simulated.value_of(back, simulated.dual(layout, mesh), shape, mesh)
        assert found is not None and np.allclose(found, gradient), (layout, move, to)


@pytest.mark.parametrize(("mesh", "shape"), MESHES[:2])
def test_every_move_keeps_value_and_gradient(mesh: Mesh, shape: tuple[int, ...]) -> None:
    for layout in simulated.layouts(len(shape), mesh, shape):
        check(layout, shape, mesh, 0, 1000)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_moves_on_more_meshes(data: st.DataObject) -> None:
    mesh, shape = data.draw(st.sampled_from(MESHES))
    layout = data.draw(st.sampled_from(simulated.layouts(len(shape), mesh, shape)))
    check(layout, shape, mesh, data.draw(st.integers(0, 999)), 12)


def one(
    layout: Layout,
    to: Layout,
    kind: MoveKind,
    shape: tuple[int, ...],
    mesh: Mesh,
    gradient: bool = True,
    itemsize: int = 1,
) -> tuple[int, int]:
    found = [m for m, after in moves(layout, shape, itemsize, mesh, gradient) if after == to and m.kind is kind]
    assert len(found) == 1
    return found[0].forward_bytes, found[0].backward_bytes


MESH = Mesh((Axis("a", 2), Axis("b", 4)))


@pytest.mark.parametrize(
    ("before", "after", "kind", "bytes"),
    [
        (Layout(((), ())), Layout(((), ()), (), ("b",)), MoveKind.I_TO_R, (0, 96)),
        (Layout(((), ()), ("b",)), Layout(((), ())), MoveKind.P_TO_I, (96, 0)),
        (Layout(((), ()), ("b",)), Layout(((), ()), (), ("b",)), MoveKind.P_TO_R, (96, 96)),
        (Layout(((), ()), ("a", "b")), Layout(((), ())), MoveKind.P_TO_I, (112, 0)),
        (Layout(((), ()), ("b",)), Layout(((), ("b",))), MoveKind.P_TO_S, (48, 48)),
        (Layout((("b",), ())), Layout(((), ()), (), ("b",)), MoveKind.S_TO_R, (48, 48)),
        (Layout((("b",), ())), Layout(((), ())), MoveKind.S_TO_I, (48, 0)),
        (Layout(((), ())), Layout((("b",), ())), MoveKind.I_TO_S, (0, 48)),
        (Layout(((), ()), (), ("b",)), Layout((("b",), ())), MoveKind.R_TO_S, (0, 0)),
        (Layout((("b",), ())), Layout(((), ("b",))), MoveKind.S_TO_S, (12, 12)),
        (Layout(((), ())), Layout(((), ()), ("b",)), MoveKind.I_TO_P, (0, 0)),
        (Layout(((), ()), (), ("b",)), Layout(((), ()), ("b",)), MoveKind.R_TO_P, (0, 0)),
        (Layout(((), ()), (), ("b",)), Layout(((), ())), MoveKind.R_TO_I, (0, 0)),
        (Layout((("b",), ())), Layout(((), ()), ("b",)), MoveKind.S_TO_P, (0, 0)),
        (Layout((("a", "b"), ())), Layout((("b", "a"), ())), MoveKind.PERMUTE, (8, 8)),
    ],
)
def test_bytes_of_each_row(before: Layout, after: Layout, kind: MoveKind, bytes: tuple[int, int]) -> None:
    assert one(before, after, kind, (8, 8), MESH) == bytes
    assert one(before, after, kind, (8, 8), MESH, gradient=False) == (bytes[0], 0)


def test_only_the_minor_most_axis_comes_off() -> None:
    found = {to.dims for _, to in moves(Layout((("a", "b"), ())), (8, 8), 4, MESH, True)}
    assert (("a",), ()) in found
    assert (("b",), ()) not in found


def test_a_permutation_never_moves_an_axis_to_one_of_another_size() -> None:
    found = [to for m, to in moves(Layout((("a",), ())), (8, 8), 4, MESH, True) if m.kind is MoveKind.PERMUTE]
    assert found == []


def test_a_dim_is_cut_only_where_it_divides() -> None:
    def cuts(uneven: frozenset[int]) -> set[tuple[tuple[str, ...], ...]]:
        return {to.dims for _, to in moves(Layout((("a",), ())), (6, 8), 4, MESH, True, uneven)}

    assert (("a", "b"), ()) not in cuts(frozenset())
    assert (("a",), ("b",)) in cuts(frozenset())


def test_an_uneven_dim_is_cut_and_gathered_in_whole_and_never_permuted() -> None:
    def after(*axes: str) -> set[tuple[str, ...]]:
        found = list(moves(Layout((axes, ())), (6, 8), 4, MESH, True, frozenset({0})))
        assert not axes or all(m.kind is not MoveKind.PERMUTE for m, _ in found)
        return {to.dims[0] for _, to in found}

    assert after() == {(), ("a",), ("b",), ("a", "b"), ("b", "a")}
    assert after("a") == {(), ("a",)}
    assert after("a", "b") == {()}


def test_costs_are_never_rounded_to_nothing() -> None:
    assert one(Layout((), ("b",)), Layout(()), MoveKind.P_TO_I, (), MESH, itemsize=4) == (6, 0)
    assert one(Layout((), ("b",)), Layout(()), MoveKind.P_TO_I, (), MESH, itemsize=1) == (2, 0)
