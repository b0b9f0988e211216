"""Device matrices: refinement, grouping into meshes, names, bridges."""

from __future__ import annotations

import itertools
import math

import pytest

from shardlang.plan.redistribute.mesh_factorings import group, refine, segments, split_axes, suffix_products, translate
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh


def factorings(n: int) -> list[tuple[int, ...]]:
    if n == 1:
        return [()]
    return [(f, *rest) for f in range(2, n + 1) if n % f == 0 for rest in factorings(n // f)]


@pytest.mark.parametrize(
    ("matrices", "refined"),
    [
        ([(2, 4, 1), (8, 1)], (2, 4)),
        ([(4, 2), (2, 4)], (2, 2, 2)),
        ([(8,), (1, 8)], (8,)),
        ([(2, 3), (3, 2)], None),
        ([(2, 2, 3), (4, 3), (12,)], (2, 2, 3)),
        ([(1,)], ()),
        ([], ()),
    ],
)
def test_refinement(matrices: list[tuple[int, ...]], refined: tuple[int, ...] | None) -> None:
    assert refine(matrices) == refined


def test_the_positional_example_sums_over_fours() -> None:
    """((2,4),(4,1)) on 8 ranks: matrix 2 * 4 * 1; its second axis is the groups {0..3}, {4..7}."""
    found = group([], [(2, 4, 1), (8, 1)])
    (mesh,) = found.meshes
    assert [a.size for a in mesh.axes] == [2, 4]
    assert found.axes_of == ((("a",), ("b",), ()), (("a", "b"), ()))
    assert mesh.groups(("b",)) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_half_of_the_pairs_to_48_ranks_have_none() -> None:
    """The calculus: 2,359 pairs, 1,205 without; unordered pairs of different ordered factorings of each rank count."""
    pairs = [p for n in range(2, 49) for p in itertools.combinations(factorings(n), 2)]
    none = [p for p in pairs if refine(p) is None]
    assert min((math.prod(p[0]), p) for p in none) == (6, ((2, 3), (3, 2)))
    assert (len(pairs), len(none)) == (2359, 1205)


def test_a_refinement_is_the_coarsest_and_gives_every_matrix_its_axes() -> None:
    for n in range(2, 25):
        for pair in itertools.combinations(factorings(n), 2):
            refined = refine(pair)
            if refined is None:
                continue
            assert set(suffix_products(refined)) == {s for m in pair for s in suffix_products(m)}
            for matrix in pair:
                parts = split_axes(matrix, refined)
                assert tuple(math.prod(refined[i] for i in p) for p in parts) == matrix
                assert [i for p in parts for i in p] == list(range(len(refined)))


def test_split_axes_refuses_what_does_not_refine() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) does not refine \(3, 2\)"):
        split_axes((3, 2), (2, 3))


def test_names_stay_and_split_axes_are_numbered() -> None:
    found = group([("dp", 4), ("mp", 2)], [(2, 4), (8,)])
    (mesh,) = found.meshes
    assert [(a.name, a.size) for a in mesh.axes] == [("dp0", 2), ("dp1", 2), ("mp", 2)]
    assert found.axes_of == ((("dp0",), ("dp1", "mp")), (("dp0", "dp1", "mp"),), (("dp0", "dp1"), ("mp",)))


def test_an_axis_of_one_rank_has_no_parts() -> None:
    found = group([("dp", 1), ("mp", 4)], [])
    assert found.axes_of == (((), ("mp",)),)
    assert [a.name for a in found.meshes[0].axes] == ["mp"]


def test_letters_avoid_the_names_taken_on_any_mesh() -> None:
    found = group([("b", 2), ("a", 3)], [(3, 2)])
    assert [[x.name for x in m.axes] for m in found.meshes] == [["b", "a"], ["c", "d"]]
    assert [m.name for m in found.meshes] == ["mesh", "mesh2"]
    assert found.mesh_of == (1, 0)


def test_as_few_meshes_as_will_do() -> None:
    """Two in every order, also where taking each in turn to the first mesh that it fits would end with three."""
    kinds = [(2, 12), (8, 3), (3, 8), (4, 6), (12, 2), (6, 4)]
    for order in itertools.permutations(kinds):
        found = group([], order)
        for i, mesh in enumerate(found.meshes):
            members = [m for m, home in zip(order, found.mesh_of, strict=True) if home == i]
            assert refine(members) == tuple(a.size for a in mesh.axes)
        assert len(found.meshes) == 2
        assert found.mesh_of[0] == 0


def test_segments_and_bridges() -> None:
    here = Mesh((Axis("p", 2), Axis("a", 2), Axis("b", 3)))
    there = Mesh((Axis("q", 2), Axis("c", 3), Axis("d", 2)), "mesh2")
    found = segments(here, there)
    assert [(s.size, s.here, s.there) for s in found] == [(2, ("p",), ("q",)), (6, ("a", "b"), ("c", "d"))]
    bridge = Layout((("p",), ("a", "b")))
    assert translate(bridge, here, there, 1) == Layout((("q",), ("c", "d")), mesh=1)
    assert translate(Layout((("a", "b", "p"), ())), here, there, 1) == Layout((("c", "d", "q"), ()), mesh=1)
    assert translate(Layout(((), ()), ("p", "a", "b")), here, there, 1) == Layout(((), ()), ("q", "c", "d"), mesh=1)
    for no in (Layout((("b", "a"), ())), Layout((("a",), ("b",))), Layout((("a",), ())), Layout((("a", "p", "b"), ()))):
        assert translate(no, here, there, 1) is None
