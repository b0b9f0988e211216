"""The bodies of a module at two sizes -> its numbers that depend on the sizes of inputs, as
formulas of the dims of these: `0..seq`, `64 - seq`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardlang.importing.bodies.body import Body, Const
from shardlang.importing.bodies.dims import Atom, Formula, atoms
from shardlang.importing.bodies.forms import Form

# Dims of inputs that have other sizes in two bodies.
Dims = Sequence[tuple[Atom, Atom]]


class Unlike(Exception):
    """Two bodies that differ in more than numbers."""


def solve(one: Body, other: Body) -> list[Formula]:
    """Gives numbers in which two bodies differ their formulas, in both; those of the first. Unlike
    where they differ in more."""
    return list(_solved(one, other))


def _solved(one: Body, other: Body) -> Iterator[Formula]:
    forms = Form(one, sized=False), Form(other, sized=False)
    if forms[0].text != forms[1].text:
        raise Unlike
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        for a, b in zip(mine.others, theirs.others, strict=True):
            yield from _solved(a, b)
    given = [atoms(term for value in body.inputs for term in value.dims) for body in (one, other)]
    dims = [(a, b) for a, b in zip(*given, strict=True) if a.size != b.size and not a.fixed]
    consts = [
        [*body.constants, *(const for layer in body.layers for const in layer.constants)] for body in (one, other)
    ]
    for const, there in zip(*consts, strict=True):
        yield from _constant(const, there, dims)
    for atom, there in zip(forms[0].atoms, forms[1].atoms, strict=True):
        if not any(atom is mine for mine, _ in dims):  # a dim that no input has
            atom.formula, there.formula = _formulas(atom.size, there.size, dims)
            yield from [atom.formula] if atom.formula and atom.declared else []


def _constant(one: Const, other: Const, dims: Dims) -> Iterator[Formula]:
    if isinstance(one.value, tuple) and isinstance(other.value, tuple):
        pairs = [_formulas(a, b, dims) for a, b in zip(one.value, other.value, strict=True)]
        there = any(mine for mine, _ in pairs)
        one.formula, other.formula = (tuple(each[at] for each in pairs) if there else None for at in (0, 1))
        yield from (mine for mine, _ in pairs if mine)
        return
    one.formula, other.formula = _formulas(one.value, other.value, dims)
    yield from [one.formula] if one.formula else []


def _formulas(one: Any, other: Any, dims: Dims) -> tuple[Formula | None, Formula | None]:
    """The formula of a number, by the dims of either side: a dim plus or minus a number, that less
    a dim, or so many times one; none where it is the same, or none fits."""
    if type(one) is not int or type(other) is not int or one == other:
        return None, None
    found = []
    for a, b in dims:
        times, rest = divmod(other - one, b.size - a.size)
        more = one - times * a.size
        if not rest and (abs(times) == 1 or not more):
            found.append((Formula(a, times, more), Formula(b, times, more)))
    return min(found, key=lambda each: _plain(each[0]), default=(None, None))


def _plain(made: Formula) -> tuple[int, bool, int]:
    return abs(made.times), made.times < 0, abs(made.more)
