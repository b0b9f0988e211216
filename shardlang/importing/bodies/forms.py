"""The form of a body: a text that two bodies share if they are one model, whatever their sizes and
numbers. Equal layers of a list are an array. Two bodies of one form at two sizes -> their numbers
that depend on the sizes of inputs, as formulas of the dims of these: `0..seq`, `64 - seq`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from shardlang.importing.bodies.body import BY_DIMS, Array, Body, Const, Layer, Twice, Value
from shardlang.importing.bodies.dims import Atom, Formula, Mismatch, Term, atoms, flat
from shardlang.importing.bodies.library import known


class BodyForm:
    """A body with numbers for dims and values, in order of appearance; `constants` are those of the
    body itself in the order of the text. sized: whether the sizes of dims that are declared, or
    written as numbers, are a part of it, with those of inner bodies."""

    def __init__(self, body: Body, sized: bool = True) -> None:
        self.sized = sized
        self.atoms: dict[Atom, int] = {}
        self.values: dict[Value, int] = {}
        self.constants: list[Const] = []
        self.text = "\n".join(self._lines(body))

    def _lines(self, body: Body) -> Iterator[str]:
        yield from map(self.tensor, body.inputs)
        for own in body.own:
            yield f"{own.name} {self.tensor(own.value)} {body.drawn(own)}"
            self.constants.extend(own.numbers if own.start.kind not in BY_DIMS else [])
        prefix = body.call.scope.prefix
        numbers: dict[Layer, int] = {}
        for layer in body.layers:
            numbers[layer] = len(numbers)
            terms = ",".join(self.term(layer.terms[atom]) for atom in layer.body.formals())
            array = (layer.array.name.removeprefix(prefix), layer.index) if layer.array else ""
            inner = f" <{layer.body.form}>" * self.sized
            yield f"{layer.path.removeprefix(prefix)} {array} ({terms}){inner}"
        for value in body.live():
            expr = value.expr
            assert expr is not None
            operands = [*(self.part(each) for each in expr.operands), *expr.keys]
            named = [f"{name}={self.part(each)}" for name, each in expr.named.items()]
            into = [self.term(term) for term in expr.into or ()]
            called = f"layer {numbers[expr.layer]} " if expr.layer else ""
            yield f"{called}{expr.word} {operands} {named} {into} {self.tensor(value)}"
        yield from map(self.part, body.results)

    def term(self, term: Term) -> str:
        # No atom's number looks like a literal 1.
        return "*".join(map(self.atom, flat(term))) or "one"

    def atom(self, atom: Atom) -> str:
        number = self.atoms.setdefault(atom, len(self.atoms))
        size = f"={atom.size}" * self.sized
        return f"#{size}" if atom.fixed else f"{number}{size * atom.declared}"

    def tensor(self, value: Value) -> str:
        self.values[value] = len(self.values)
        return value.kind + "[" + ",".join(map(self.term, value.dims)) + "]"

    def part(self, x: Any) -> str:
        if isinstance(x, Const) and x.of:
            return f"size {self.term(x.of)} {x.power}"
        if isinstance(x, Const):
            self.constants.append(x)
            return f"?{type(x.value).__name__}"
        if isinstance(x, Value):
            if x not in self.values and x.expr is not None and x.expr.word == "path":
                layer, name = x.expr.operands
                return f"path {layer.path.rpartition('.')[2]}{name.removeprefix(layer.path)}"
            return f"v{self.values[x]}"
        if isinstance(x, tuple) and x and not isinstance(x[0], Atom):
            return "(" + ",".join(map(self.part, x)) + ")"
        return self.term(x)


def form(body: Body) -> tuple[str, list[Const]]:
    """The digest of the form of a body, and its constants."""
    whole, leaf = BodyForm(body), known(body)
    text = whole.text
    if leaf is not None:  # its leading dims, if any, are all the same to it
        alone = BodyForm(dataclasses.replace(body, inputs=[], layers=[], results=[]))
        named = [name for value in body.live() if value.expr is not None for name in value.expr.named]
        text = " ".join([leaf.name, alone.text, *named])
    return hashlib.sha256(text.encode()).hexdigest(), whole.constants


def all_constants(body: Body) -> list[Any]:
    """The numbers of a body and of all its layers."""
    found = [const.value for const in body.constants]
    for layer in body.layers:
        found += all_constants(layer.body)
    return found


def find_arrays(body: Body) -> None:
    """Layers 0 to n - 1 of a list that are one model, with equal sizes and numbers, share their
    dims and are an array."""
    lists: dict[str, list[Layer]] = {}
    for layer in body.layers:
        home, _, last = layer.path.rpartition(".")
        if last.isdigit() and home != body.call.scope.path:
            lists.setdefault(home, []).append(layer)
    for home, layers in lists.items():
        layers.sort(key=lambda layer: int(layer.path.rpartition(".")[2]))
        at = [int(layer.path.rpartition(".")[2]) for layer in layers]
        alone = len(layers) == 1 and known(layers[0].body) is not None
        if at == list(range(len(layers))) and not alone and all(_equal(layers[0], layer) for layer in layers[1:]):
            _share(body, home, layers)


def _equal(one: Layer, other: Layer) -> bool:
    sizes = [[atom.size for atom in layer.body.formals()] for layer in (one, other)]
    return sizes[0] == sizes[1] and same_model(one.body, other.body)


def same_model(one: Body, other: Body) -> bool:
    """Whether two bodies compute the same, with the same numbers."""
    return one.form == other.form and all_constants(one) == all_constants(other)


def _share(body: Body, home: str, layers: list[Layer]) -> None:
    first = layers[0]
    array = Array(home, layers)
    try:
        for layer in layers[1:]:
            for mine, theirs in zip(first.body.formals(), layer.body.formals(), strict=True):
                body.unify(first.terms[mine], layer.terms[theirs])
    except (Twice, Mismatch):
        return
    for index, layer in enumerate(layers):
        layer.array, layer.index = array, index


# Dims of inputs that have other sizes in two bodies.
Dims = Sequence[tuple[Atom, Atom]]


class Unlike(Exception):
    """Two bodies that differ in more than numbers."""


def solve(one: Body, other: Body) -> list[Formula]:
    """Gives numbers in which two bodies differ their formulas, in both; those of the first. Unlike
    where they differ in more."""
    return list(_solved(one, other))


def _solved(one: Body, other: Body) -> Iterator[Formula]:
    forms = BodyForm(one, sized=False), BodyForm(other, sized=False)
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
