"""Names of dims, numbers, layers and parameters as they are written in a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardlang.importing.bodies.body import Bare, Body, Const, Expr, Layer, Value
from shardlang.importing.bodies.dims import Atom, Formula, Term, atoms, flat, size
from shardlang.importing.bodies.models import Model
from shardlang.importing.text.names import Namer, layer_name, own_name


class Terms:
    """The words of the models of a file."""

    def __init__(self, made: Mapping[Body, Model], namer: Namer) -> None:
        self.made, self.namer = made, namer
        self._known: dict[Model, set[Atom]] = {}
        self._passed: dict[Model, set[Atom]] = {}

    def known(self, model: Model) -> set[Atom]:
        """`Model.known`, found once."""
        if model not in self._known:
            self._known[model] = model.known()
        return self._known[model]

    def passed(self, model: Model) -> set[Atom]:
        """Sums and multiples of dims that are written in place: they are given to layers, a sum to
        one alone, and stand nowhere else."""
        if model not in self._passed:
            given = [flat(term) for layer in model.body.layers if not layer.index
                     for term in (layer.terms[atom] for atom in layer.body.formals())]  # fmt: skip
            sums = {term[0] for term in given if len(term) == 1 and len(term[0].sum) > 1 and given.count(term) == 1}
            self._passed[model] = {*sums, *(atom for atom in model.dims.values() if atom.sum)} - {
                self.first(model, atom) for atom in _written(model)
            }
        return self._passed[model]

    @staticmethod
    def first(model: Model, atom: Atom) -> Atom:
        """The dim that stands for those that are one with it."""
        return model.dims.get(atom, atom)

    def sum(self, model: Model, atom: Atom) -> str:
        """A dim that is as long as others together: `d + pairs`, `2 * out`."""
        names = [self.name(model, each) for each in flat(atom.sum)]
        return f"{len(names)} * {names[0]}" if len({*names}) == 1 < len(names) else " + ".join(names)

    def name(self, model: Model, atom: Atom) -> str:
        first = self.first(model, atom)
        if first.sum and first in self.passed(model):
            return self.sum(model, first)
        names = self.namer.names[model]
        here: Atom | None = atom
        while here is not None and not here.fixed:
            here = flat((here,))[0] if here.same or here.parts else here
            found = names.get(model.dims.get(here, here))
            if found:
                return found
            here = here.like
        made = atom.formula
        return self.formula(model, made) if made and (made.times, made.more) == (1, 0) else str(atom.size)

    def formula(self, model: Model, made: Formula) -> str:
        """A number that depends on the size of a dim: `seq + 3`, `64 - seq`."""
        name, times, more = self.name(model, made.atom), made.times, made.more
        text = name if abs(times) == 1 else f"{abs(times)} * {name}"
        if times < 0:
            return f"{more} - {text}"
        return f"{text} {'-' if more < 0 else '+'} {abs(more)}" if more else text

    def term(self, model: Model, term: Term) -> str:
        return " * ".join(self.name(model, atom) for atom in flat(term)) or "1"

    def type(self, model: Model, value: Value) -> str:
        return value.kind + self.dims(model, value.dims)

    def dims(self, model: Model, dims: Sequence[Term]) -> str:
        """Dims as they are written; leading ones that do not matter are `...`."""
        terms = [self.term(model, term) for term in dims]
        rest = [text for text in terms if text != "..."]
        if model.kind and len(rest) < len(terms):
            last = len(terms) - terms[::-1].index("...")
            rest = ["...", *terms[last:]]
        return f"[{', '.join(rest)}]"

    def number(self, model: Model, const: Const) -> str:
        if const.of:
            return self._size(self.term(model, const.of), const.power)
        if const.formula is None or const in model.varying:
            return model.varying.get(const) or literal(const.value)
        if isinstance(const.formula, Formula):
            return self.formula(model, const.formula)
        both = zip(const.value, const.formula, strict=True)
        return f"({', '.join(literal(each) if made is None else self.formula(model, made) for each, made in both)})"

    @staticmethod
    def _size(text: str, power: float) -> str:
        """A size to a power: `d ** -0.5`."""
        base = f"({text})" if " " in text else text
        return text if power == 1 else f"{base} ** {power}"

    def settings(self, model: Model, expr: Expr) -> list[str]:
        """The settings of a call, of numbers those that are formals or not the usual ones."""
        return [self.named(model, name, given) for name, given in expr.named.items()
                if not isinstance(given, Const) or given.usual is None or given.value != given.usual
                or given in model.varying]  # fmt: skip

    def named(self, model: Model, name: str, given: Any) -> str:
        if isinstance(given, Const):
            return f"{name} = {self.number(model, given)}"
        if name == "dim":
            return self.term(model, given)
        if name == "pick":
            return f"{self.term(model, given[0])} = {self.number(model, given[1])}"
        if name == "slice":
            term, start, *rest = given
            bounds = "..".join(self.term(model, each) if isinstance(each, tuple) else self._bound(model, term, each)
                               for each in (start, *rest))  # fmt: skip
            return f"{self.term(model, term)} = {bounds}"
        if name == "pads":
            return ", ".join(f"{self.term(model, term)} = {self.number(model, both)}" for term, both in given)
        if given and isinstance(given[0], tuple):
            return f"{name} = ({', '.join(self.term(model, term) for term in given)})"
        return f"{name} = {self.term(model, given)}"

    def _bound(self, model: Model, term: Term, bound: Const) -> str:
        """A bound of a slice: from the end, where it is below 0."""
        if bound.value != "end" and not (bound.value < 0 and bound.role == "start"):
            return self.number(model, bound)
        names, known = self.namer.names[model], self.known(model)
        more, atoms = 0 if bound.value == "end" else bound.value, flat(term)
        atom: Atom | None = atoms[0]
        while len(atoms) == 1 and atom is not None:
            here = model.dims.get(atom, atom)
            if here in known and here in names:
                return f"{names[here]} {'-' if more < 0 else '+'} {abs(more)}" if more else names[here]
            if atom.differs is None or atom.like is None:
                break
            more, atom = more + atom.differs, flat((atom.like,))[0]
        whole = all(model.dims.get(each, each) in known for each in atoms) and not more
        return self.term(model, term) if whole else str(size(term) + (0 if bound.value == "end" else bound.value))

    def layer(self, model: Model, layer: Layer) -> str:
        index = f"[{layer.index}]" if layer.array else ""
        return layer_name(model.body, layer) + index

    def path(self, model: Model, value: Value) -> str:
        """A parameter of a layer by its path."""
        assert value.expr is not None
        layer, name = value.expr.operands
        parts, body = [self.layer(model, layer)], layer.body
        while True:
            inner = self.made[body]
            at = next((at for at, own in enumerate(body.own) if body.call.scope.prefix + own.name == name), None)
            # The body that stands for the model has the names; its layers are in the same order.
            if at is not None:
                return ".".join([*parts, own_name(inner.body, inner.body.own[at])])
            at, layer = next((at, each) for at, each in enumerate(body.layers) if name.startswith(f"{each.path}."))
            parts.append(self.layer(inner, inner.body.layers[at]))
            body = layer.body


def _written(model: Model) -> Iterator[Atom]:
    """The dims that the expressions of a model write, or its arguments, results and parameters."""
    body = model.body
    for value in [*body.inputs, *body.results, *(own.value for own in body.own)]:
        yield from atoms(value.dims)
    for atom in body.products:
        yield from flat((*atom.product, *atom.sum))
    for value in body.live():
        assert value.expr is not None
        for given in (value.expr.operands, value.expr.into or (), tuple(value.expr.named.values())):
            yield from _atoms(given)


def _atoms(given: Any) -> Iterator[Atom]:
    if isinstance(given, Atom):
        yield from flat((given,))
    elif isinstance(given, Const):
        yield from flat(given.of)
    elif isinstance(given, tuple | list):
        for each in given:
            yield from _atoms(each)


def literal(value: Any) -> str:
    """A number as the language writes it."""
    if isinstance(value, Bare):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"({', '.join(map(literal, value))})"
    if isinstance(value, float) and math.isinf(value):
        value = math.copysign(3.4028234663852886e38, value)
    if isinstance(value, float) and value == int(value) and abs(value) < 1e6:
        return f"{value:.1f}"
    return repr(value)
