"""Dims that operators and layers made, where a later step has to name them: the value gets names
that the model declares, by `relabel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardlang.importing.bodies.body import Body, Expr, Value
from shardlang.importing.bodies.dims import Atom, Term, atoms, flat, size

# Operators that write each dim of what they read.
_WRITE_ALL = ("rearrange", "expand", "einsum", "relabel")
# Operators that call their dims of places by names of their own.
_WINDOWS = ("conv", "pool", "interpolate")
# Operators that are written with the name of one dim, not of a product.
_NAME_ONE = ("pick", "slice", "pad")


def rename(body: Body) -> None:
    """Puts a `relabel` behind each value that makes dims which steps name, and no name reaches."""
    for value in body.inputs:
        for atom in atoms(value.dims):
            atom.declared = False
    live = body.live()
    for value in live:
        if value.expr is not None and any(part in value.expr.word for part in _WINDOWS):
            value.made |= {at for at, term in enumerate(value.dims) if any(atom.called for atom in term)}
    needed: set[Atom] = set()
    for value in live:
        expr = value.expr
        assert expr is not None
        for operand in (each for each in expr.operands if isinstance(each, Value)):
            needed.update(_named(expr, operand))
    changes: dict[Value, Value] = {}
    while True:
        # A dim that is declared for one value is declared for all that have it.
        lost = {}
        for value in live:
            places = [at for at in value.made if needed & set(flat(value.dims[at])) and _lost(body, value, at)]
            if places and value not in changes:
                lost[value] = places
        if not lost:
            break
        for value, places in lost.items():
            _declare(body, value, places)
            changes[value] = _relabelled(body, value)
    for value in live:
        assert value.expr is not None
        value.expr.operands = [changes.get(each, each) if isinstance(each, Value) else each
                               for each in value.expr.operands]  # fmt: skip
        if value.expr.word in _NAME_ONE:
            _single(body, value.expr)
    body.results = [changes.get(each, each) for each in body.results]


def _named(expr: Expr, operand: Value) -> Iterator[Atom]:
    """The dims of an operand that an expression writes."""
    if expr.word in _WRITE_ALL:
        yield from atoms(operand.dims)
    for given in expr.named.values():
        yield from _atoms(given)


def _atoms(given: Any) -> Iterator[Atom]:
    if isinstance(given, Atom):
        yield from flat((given,))
    elif isinstance(given, tuple):
        for each in given:
            yield from _atoms(each)


def _lost(body: Body, value: Value, at: int) -> bool:
    """Whether a dim of a value has another name in the program than the importer's, or none."""
    term = flat(value.dims[at])
    if value.expr is None or not term:
        return False
    known = reached(body)
    if at in value.made and (term != value.dims[at] or known & set(term) or any(atom.declared for atom in term)):
        return True
    return any(not _chain(atom, known) for atom in term)


def _chain(atom: Atom, known: set[Atom]) -> bool:
    here: Atom | None = atom
    seen = set[Atom]()  # two dims that became one may be like each other
    while here is not None and (here := flat((here,))[0]) not in seen:
        if here in known or here.called or here.declared:
            return True
        seen.add(here)
        here = here.like
    return False


def reached(body: Body) -> set[Atom]:
    """The dims that a name of the model reaches."""
    found = {atom for value in body.inputs for atom in atoms(value.dims)}
    found |= {atom for own in body.own for atom in atoms(own.value.dims)}
    return found | set(body.formals()) | set(body.sources()) | set(body.sources().values())


def _declare(body: Body, value: Value, places: list[int]) -> None:
    known = reached(body)
    for atom in (atom for at in places for atom in flat(value.dims[at])):
        if not _chain(atom, known) or (atom.like is not None and atom not in known):
            atom.declared = True
            atom.hint("parts", 12)


def _relabelled(body: Body, value: Value) -> Value:
    new = Value(list(value.dims), value.kind, Expr("relabel", [value], into=value.dims), name=value.name)
    value.name = ""
    last = max(body.values.index(each) for each in (value.results or (value,)))
    body.values.insert(last + 1, new)
    return new


def _single(body: Body, expr: Expr) -> None:
    """A product of dims, of which an operator takes a part, is one dim of its own."""
    name = next(each for each in expr.named if each in ("pick", "slice", "pads"))
    given = expr.named[name]
    groups = given if name == "pads" else (given,)
    terms = [group[0] for group in groups]
    if all(len(flat(term)) == 1 for term in terms):
        return
    changes: dict[Term, Term] = {flat(term): _joined(term) for term in terms if len(flat(term)) != 1}
    body.products += [atom for (atom,) in changes.values()]
    operand = expr.operands[0]
    into = [changes.get(flat(term), term) for term in operand.dims]
    new = Value(into, operand.kind, Expr("relabel", [operand], into=into), name="")
    body.values.insert(body.values.index(operand) + 1 if operand in body.values else 0, new)
    expr.operands[0] = new
    found = tuple((changes.get(flat(group[0]), group[0]), *group[1:]) for group in groups)
    expr.named[name] = found if name == "pads" else found[0]


def _joined(term: Term) -> Term:
    atom = Atom(size(term), {"flat": 9}, declared=True)
    atom.product = flat(term)
    return (atom,)
