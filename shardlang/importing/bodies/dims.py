"""Dims of a model that is being made: atoms, which operators make one or cut in two.

A tensor dim is a term, a product of atoms, major first; a literal 1 is the product of none. Two
atoms are never one because their sizes are equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


class Mismatch(Exception):
    """Two terms that cannot be one, whatever is cut."""


@dataclass(eq=False)
class Atom:
    """A dim. hints: names that it may get, with a rank: the lowest is the best, and one of -1 is
    what an operator calls it. parts: what it was cut into; same: the atom that it has become.
    fixed: the window of a convolution, which is written as a number. like: the dim that an operator
    made it from, whose name it keeps; differs: by how much it is longer, at all sizes. declared:
    the model declares it, with its size, as a product of dims, as a sum of them, or as the count of
    pairs of one (`pairs_of`). formula: what
    its size is, where it depends on that of an input."""

    size: int
    hints: dict[str, int] = field(default_factory=dict)
    parts: tuple[Atom, Atom] | None = None
    same: Atom | None = None
    fixed: bool = False
    like: Atom | None = None
    differs: int | None = None
    declared: bool = False
    product: Term = ()
    sum: Term = ()
    pairs_of: Term = ()
    formula: Formula | None = None

    @property
    def called(self) -> str:
        """The name that an operator gives it; "" if none does."""
        return next((name for name, rank in self.hints.items() if rank == -1), "")

    def hint(self, name: str, rank: int) -> None:
        self.hints[name] = min(rank, self.hints.get(name, rank))


Term = tuple[Atom, ...]


@dataclass(frozen=True)
class Formula:
    """A number that depends on the size of a dim: so many `times` it, and `more`."""

    atom: Atom
    times: int
    more: int


def flat(term: Iterable[Atom]) -> Term:
    """The atoms of a term as they are by now."""
    found: list[Atom] = []
    for atom in term:
        while atom.same is not None:
            atom = atom.same
        found.extend(flat(atom.parts) if atom.parts else (atom,))
    return tuple(found)


def atoms(dims: Iterable[Term]) -> Term:
    """The atoms of the dims of a tensor, in order."""
    return flat(atom for term in dims for atom in term)


def size(term: Iterable[Atom]) -> int:
    return math.prod(atom.size for atom in flat(term))


def fresh(size: int, **hints: int) -> Term:
    """A new dim; 1 is the literal one."""
    return () if size == 1 else (Atom(size, dict(hints)),)


def cut(atom: Atom, major: int) -> tuple[Atom, Atom]:
    """Cuts an atom in two, of `major` and the rest, wherever it stands."""
    if major < 1 or atom.size % major:
        raise Mismatch
    atom.parts = (Atom(major), Atom(atom.size // major))
    return atom.parts


def join(left: Atom, right: Atom) -> None:
    """Makes one of two atoms of a size; the names of both are kept."""
    if left is not right:
        for name, rank in right.hints.items():
            left.hint(name, rank)
        right.same = left


def pairs(left: Iterable[Atom], right: Iterable[Atom]) -> list[tuple[Atom, Atom]]:
    """Which atoms become one if two terms do: the larger of two major ones is cut. Mismatch."""
    rest = [list(flat(left))[::-1], list(flat(right))[::-1]]
    found = []
    while rest[0] and rest[1]:
        a, b = rest[0].pop(), rest[1].pop()
        if a is b:
            continue
        if a.size > b.size:
            a, minor = cut(a, b.size)
            rest[0].append(minor)
        elif b.size > a.size:
            b, minor = cut(b, a.size)
            rest[1].append(minor)
        found.append((a, b))
    if rest[0] or rest[1]:
        raise Mismatch
    return found


def viewed(dims: Sequence[Term], sizes: Sequence[int]) -> list[Term]:
    """The dims of a view of `sizes`: atoms in order, cut where a size ends within one. Mismatch."""
    rest = list(atoms(dims))[::-1]
    found: list[Term] = []
    for wanted in sizes:
        term: list[Atom] = []
        left = wanted
        while left > 1:
            if not rest:
                raise Mismatch
            atom = rest.pop()
            if atom.size > left:
                atom, minor = cut(atom, left)
                rest.append(minor)
            if left % atom.size:
                raise Mismatch
            left //= atom.size
            term.append(atom)
        found.append(tuple(term))
    if any(atom.size > 1 for atom in rest):
        raise Mismatch
    return found
