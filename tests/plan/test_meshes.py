"""Meshes as arithmetic on ranks: strides, coordinates, and groups in the order of their axes."""

from __future__ import annotations

import itertools

import pytest

from shardlang.types.mesh import Axis, Mesh

MESH = Mesh((Axis("pp", 2), Axis("dp", 3), Axis("mp", 2)))


def test_ranks_are_row_major() -> None:
    places = list(itertools.product(range(2), range(3), range(2)))
    assert [tuple(MESH.coordinate(rank, a) for a in ("pp", "dp", "mp")) for rank in range(12)] == places
    assert [MESH.stride(a) for a in ("pp", "dp", "mp")] == [6, 2, 1]
    assert MESH.degree(("pp", "mp")) == 4
    for call in (MESH.axis_size, MESH.stride):
        with pytest.raises(KeyError):
            call("cp")


def test_members_of_a_group_are_in_the_order_of_its_axes() -> None:
    assert MESH.groups(("mp",))[:2] == ((0, 1), (2, 3))
    assert MESH.groups(("dp", "mp")) == ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11))
    assert MESH.groups(("mp", "dp")) == ((0, 2, 4, 1, 3, 5), (6, 8, 10, 7, 9, 11))
    assert MESH.groups(("mp", "pp")) == ((0, 6, 1, 7), (2, 8, 3, 9), (4, 10, 5, 11))
    assert MESH.groups(()) == tuple((rank,) for rank in range(12))
