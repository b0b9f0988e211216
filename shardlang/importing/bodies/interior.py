"""Dims inside of models: one that no caller sees, and that has the size of a formal in all calls,
is declared by its model with that size (`dim hidden = out`), so that callers need not give it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardlang.importing.bodies.body import Body, Layer
from shardlang.importing.bodies.dims import Atom, Term, atoms, flat
from shardlang.importing.bodies.models import Model

# The calls of a model: the bodies around them, and the layers there.
Calls = Sequence[tuple[Body, Layer]]


def declare_inner(made: Mapping[Body, Model], root: Model) -> None:
    """Declares such dims in all models but the whole, those of inner models first."""
    for model, calls in _called(made):
        for at in _inner(model, calls)[::-1] if model is not root else ():
            many = {_parts(body, body.formals()[at]) for body in model.bodies}
            place = _place(model, at, *many) if len(many) == 1 else None
            if place is not None:
                _declare(model, at, calls, [(body.formals()[place],) * min(many) for body in model.bodies])
    _renew(made)


def declare_sums(made: Mapping[Body, Model]) -> None:
    """Declares a dim inside that is as long as others together, of values that are put together, by
    these: callers need not give it."""
    for model, calls in _called(made):
        formals = [body.formals() for body in model.bodies]
        for at in range(len(formals[0]))[::-1]:
            sums = [_sum(body, each[at]) for body, each in zip(model.bodies, formals, strict=True)]
            if all(sums) and all(_unshared(outer, layer, at) for outer, layer in calls):
                _declare(model, at, calls, sums)
    _renew(made)


def _called(made: Mapping[Body, Model]) -> Iterator[tuple[Model, Calls]]:
    """The models that are written, with their calls."""
    bodies = [body for model in dict.fromkeys(made.values()) for body in model.bodies]
    for model in dict.fromkeys(made.values()):
        if not model.kind and model.library is None:
            yield model, [(outer, layer) for outer in bodies for layer in outer.layers if made[layer.body] is model]


def _declare(model: Model, at: int, calls: Calls, sums: Sequence[Term]) -> None:
    """Declares a formal of a model as the sum of others, in each body: no call gives it."""
    atoms = [body.formals()[at] for body in model.bodies]
    for _, layer in calls:
        layer.terms.pop(layer.body.formals()[at], None)
    for body, atom, parts in zip(model.bodies, atoms, sums, strict=True):
        atom.declared, atom.sum = True, parts
        body.products.append(atom)


def _renew(made: Mapping[Body, Model]) -> None:
    """The formals that models have by now."""
    for model in dict.fromkeys(made.values()):
        model.dims = {atom: atom for atom in model.body.formals()}


def _sum(body: Body, atom: Atom) -> Term:
    """The dims that a dim inside is put together of, if the model knows each; else ()."""
    if not _hidden(body, atom):
        return ()
    known = {*body.formals(), *body.sources()} - {atom}
    for value in body.live():
        places = [at for at, term in enumerate(value.dims) if flat(term) == (atom,)]
        if value.expr is None or value.expr.word != "concat" or not places:
            continue
        terms = [flat(each.dims[places[0]]) for each in value.expr.operands]
        if all(len(term) == 1 and (term[0] in known or term[0].declared) for term in terms):
            return tuple(term[0] for term in terms)
    return ()


def _inner(model: Model, calls: Calls) -> list[int]:
    """The places of the formals that all bodies have inside alone, and that all callers pass for
    nothing else."""
    lists = [body.formals() for body in model.bodies]
    found = [at for at in range(len(lists[0]))
             if all(_hidden(body, formals[at]) for body, formals in zip(model.bodies, lists, strict=True))]  # fmt: skip
    return [at for at in found if all(_unshared(outer, layer, at) for outer, layer in calls)]


def _hidden(body: Body, atom: Atom) -> bool:
    """Whether a dim is of steps between layers alone, and never a factor of a product."""
    values = [*body.inputs, *body.results, *(own.value for own in body.own)]
    seen = {each for value in values for each in atoms(value.dims)}
    terms = [*(term for value in body.values for term in value.dims),
             *(layer.terms[each] for layer in body.layers for each in layer.body.formals())]  # fmt: skip
    alone = all(len(flat(term)) == 1 for term in terms if atom in flat(term))
    return atom not in seen and alone and atom not in body.sources().values() and not atom.called


def _unshared(outer: Body, layer: Layer, at: int) -> bool:
    """Whether what a layer is given for a formal stands nowhere else."""
    given = flat(layer.terms[layer.body.formals()[at]])
    if len(given) != 1 or any(given[0] in atoms(value.dims) for value in outer.tensors()):
        return False
    for each in outer.layers:
        for place, atom in enumerate(each.body.formals()):
            if given[0] in flat(each.terms[atom]) and (place != at or each.body.form != layer.body.form):
                return False
    return True


def _place(model: Model, at: int, many: int) -> int | None:
    """The place of another formal that has the size of one, or for values that are put together,
    that so many times."""
    lists = [body.formals() for body in model.bodies]
    return next((place for place in _outside(model.body) if place != at and all(
        formals[at].size == many * formals[place].size for formals in lists)), None)  # fmt: skip


def _parts(body: Body, atom: Atom) -> int:
    """How many values of one size are put together along a dim: 1 for others."""
    for value in body.values:
        expr = value.expr
        if expr is not None and expr.word == "concat" and any(flat(term) == (atom,) for term in value.dims):
            return len(expr.operands)
    return 1


def _outside(body: Body) -> Iterator[int]:
    """The places of the formals that results have, then of those that inputs have."""
    formals = body.formals()
    for values in (body.results, body.inputs):
        yield from (at for at, atom in enumerate(formals) if any(atom in atoms(value.dims) for value in values))
