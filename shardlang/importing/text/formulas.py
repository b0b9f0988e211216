"""The bodies of a module at two sizes -> its numbers that depend on the sizes of inputs, as
formulas of the dims of these: `0..seq`, `64 - seq`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardlang.importing.bodies.body import Body, Const, Value
from shardlang.importing.bodies.dims import Atom, Formula, Term, flat

Pair = tuple[Atom, Atom]


class Unlike(Exception):
    """Two bodies that differ in more than numbers."""


def solve(one: Body, other: Body) -> list[Formula]:
    """Gives numbers in which two bodies differ their formulas, in both; those of the first. Unlike
    where they differ in more."""
    return list(_Solver().bodies(one, other))


class _Solver:
    """Goes through two bodies at once. dims: those of inputs that have other sizes."""

    def __init__(self) -> None:
        self.dims: list[Pair] = []

    def bodies(self, one: Body, other: Body) -> Iterator[Formula]:
        for mine, theirs in _both(one.layers, other.layers):
            for a, b in _both(mine.others, theirs.others):
                yield from _Solver().bodies(a, b)
        for mine, theirs in _both(one.inputs, other.inputs):
            self.dims += [(a, b) for a, b in _atoms(mine.dims, theirs.dims) if a.size != b.size and not a.fixed]
        for mine, theirs in _both(one.layers, other.layers):
            yield from self.parts(mine.constants, theirs.constants)
            yield from self.parts(list(mine.terms.values()), list(theirs.terms.values()))
        for mine, theirs in _both(one.live(), other.live()):
            yield from self.values(mine, theirs)

    def values(self, one: Value, other: Value) -> Iterator[Formula]:
        assert one.expr is not None and other.expr is not None
        if one.expr.word != other.expr.word or list(one.expr.named) != list(other.expr.named):
            raise Unlike
        for a, b in ((one.expr.operands, other.expr.operands), (one.dims, other.dims),
                     (one.expr.into or [], other.expr.into or []),
                     (list(one.expr.named.values()), list(other.expr.named.values()))):  # fmt: skip
            yield from self.parts(a, b)

    def parts(self, one: Sequence[Any], other: Sequence[Any]) -> Iterator[Formula]:
        """Numbers, dims and groups of these, as an expression has them."""
        for a, b in _both(one, other):
            if isinstance(a, Const) and isinstance(b, Const):
                yield from self.constant(a, b)
            elif isinstance(a, Atom) and isinstance(b, Atom):
                yield from self.sizes(a, b)
            elif isinstance(a, tuple | list) and isinstance(b, tuple | list):
                yield from self.parts(_flat(a), _flat(b))

    def constant(self, one: Const, other: Const) -> Iterator[Formula]:
        if isinstance(one.value, tuple) and isinstance(other.value, tuple):
            pairs = [self.formulas(a, b) for a, b in _both(one.value, other.value)]
            there = any(mine for mine, _ in pairs)
            one.formula, other.formula = (tuple(each[at] for each in pairs) if there else None for at in (0, 1))
            yield from (mine for mine, _ in pairs if mine)
            return
        one.formula, other.formula = self.formulas(one.value, other.value)
        yield from [one.formula] if one.formula else []

    def sizes(self, one: Atom, other: Atom) -> Iterator[Formula]:
        """A dim that no input has and that has another size."""
        if not any(one is mine for mine, _ in self.dims):
            one.formula, other.formula = self.formulas(one.size, other.size)
            yield from [one.formula] if one.formula and one.declared else []

    def formulas(self, one: Any, other: Any) -> tuple[Formula | None, Formula | None]:
        """The formula of a number, by the dims of either side: a dim plus or minus a number, that
        less a dim, or so many times one; none where it is the same, or none fits."""
        if type(one) is not int or type(other) is not int or one == other:
            return None, None
        found = []
        for a, b in self.dims:
            times, rest = divmod(other - one, b.size - a.size)
            more = one - times * a.size
            if not rest and (abs(times) == 1 or not more):
                found.append((Formula(a, times, more), Formula(b, times, more)))
        return min(found, key=lambda each: _plain(each[0]), default=(None, None))


def _plain(made: Formula) -> tuple[int, bool, int]:
    return abs(made.times), made.times < 0, abs(made.more)


def _flat(part: Sequence[Any]) -> Sequence[Any]:
    """The dims of a term as they are by now, or another group."""
    return flat(part) if part and all(isinstance(each, Atom) for each in part) else part


def _atoms(one: Sequence[Term], other: Sequence[Term]) -> Iterator[Pair]:
    for mine, theirs in _both(one, other):
        yield from _both(flat(mine), flat(theirs))


def _both(one: Sequence[Any], other: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    if len(one) != len(other):
        raise Unlike
    return zip(one, other, strict=True)
