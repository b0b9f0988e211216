"""Which cuts of the factors of a product dim are cuts of the dim itself, against the indices that ranks then have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from shardlang.ops.rule import Factor, factor_rule
from shardlang.plan.layouts.assignment import assign, legal_products
from shardlang.types.mesh import Axis, Mesh

MESH = Mesh((Axis("p", 2), Axis("q", 2), Axis("r", 3)))
Axes = tuple[str, ...]


def cuts(factors: int) -> Iterator[tuple[Axes, ...]]:
    """Every way to give each axis to one factor or to none, in every order."""
    for order in itertools.permutations(axis.name for axis in MESH.axes):
        for owners in itertools.product(range(-1, factors), repeat=len(order)):
            yield tuple(tuple(a for a, f in zip(order, owners, strict=True) if f == mine) for mine in range(factors))


def part(length: int, axes: Sequence[str], at: dict[str, int]) -> slice:
    """The block along something of `length` that axes, major first, cut evenly."""
    number = 0
    for axis in axes:
        number = number * MESH.axis_size(axis) + at[axis]
    each = length // MESH.degree(tuple(axes))
    return slice(number * each, (number + 1) * each)


@pytest.mark.parametrize("sizes", [(2, 6), (4, 3), (2, 2, 3), (6, 4), (12, 12), (3, 2, 2)])
def test_cuts_of_factors_are_legal_where_they_are_blocks_of_the_dim(sizes: tuple[int, ...]) -> None:
    indices = np.arange(np.prod(sizes)).reshape(sizes)
    factors = tuple(Factor(f"f{i}", size) for i, size in enumerate(sizes))
    rule = factor_rule(factors, ((tuple(range(len(sizes))),),), ((tuple(range(len(sizes))),),))
    seen = set()
    for axes in cuts(len(sizes)):
        if any(size % MESH.degree(mine) for size, mine in zip(sizes, axes, strict=True)):
            continue
        places = [dict(zip("pqr", at, strict=True)) for at in itertools.product(range(2), range(2), range(3))]
        blocks = [
            indices[tuple(part(size, mine, at) for size, mine in zip(sizes, axes, strict=True))].ravel()
            for at in places
        ]
        of_dim = [indices.ravel()[part(indices.size, [a for mine in axes for a in mine], at)] for at in places]
        same = all(np.array_equal(a, b) for a, b in zip(blocks, of_dim, strict=True))
        assert legal_products(rule, assign(axes), MESH) == same, axes
        seen.add(same)
    assert seen == {True, False}
