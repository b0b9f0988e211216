"""Bodies -> models: those of one form are one model, and the numbers in which they differ are its
formals. Models that the library has are taken from there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardlang.importing.bodies.body import Body, Const, Layer, free
from shardlang.importing.bodies.dims import Atom, atoms, flat
from shardlang.importing.bodies.library import LIBRARY, Known, known


@dataclass(eq=False)
class Model:
    """bodies: of all calls; the first stands for them. dims: its formals, with those that they are
    one with. varying: the constants that are formals, of the first body, with their names. library:
    what it is in std.nn; kind: what it would be there if its start were that. bare: the same
    without a bias, which `bias = false` says; is_bare: whether it is that of another."""

    name: str
    bodies: list[Body]
    dims: dict[Atom, Atom] = field(default_factory=dict)
    varying: dict[Const, str] = field(default_factory=dict)
    library: Known | None = None
    kind: str = ""
    bare: Model | None = None
    is_bare: bool = False

    @property
    def body(self) -> Body:
        return self.bodies[0]

    def formals(self) -> list[Atom]:
        """Its formals of kind dim, each once."""
        return [atom for atom in dict.fromkeys(self.dims.values()) if not atom.sum]

    def known(self) -> set[Atom]:
        """The dims that a name reaches: formals, those of inputs, and those that it declares.
        Others, which an operator makes, are written as numbers."""
        body = self.body
        found = {atom for value in body.inputs for atom in atoms(value.dims)}
        found |= set(body.sources())
        found |= {atom for value in body.values for atom in atoms(value.dims) if atom.declared}
        return {self.dims.get(atom, atom) for atom in found} | set(self.dims.values())


def models(root: Body) -> dict[Body, Model]:
    """The model of each body; those that others need come first."""
    ordered: list[Body] = []
    _collect(root, ordered)
    found: dict[Body, Model] = {}
    forms: dict[tuple[str, str], Model] = {}
    for body in ordered:
        name = _class(body)
        model = forms.setdefault((name, body.form), Model(name, []))
        model.bodies.append(body)
        found[body] = model
    made = sorted(dict.fromkeys(found.values()), key=lambda model: height(model.body))
    leaves = [model for model in made if not model.body.layers]
    for model in leaves:
        _finish(model)
    for model in leaves:
        _pair(model, leaves)
    for model in made[len(leaves) :]:
        for body in model.bodies:
            _pass_constants(body, found)
        _finish(model)
    return found


def height(body: Body) -> int:
    """How deep the layers of a body are."""
    return 1 + max((height(layer.body) for layer in body.layers), default=-1)


def _collect(body: Body, ordered: list[Body]) -> None:
    for layer in body.layers:
        for inner in layer.others:
            _collect(inner, ordered)
    ordered.append(body)


def _class(body: Body) -> str:
    """The name of a model: that of its class, or of the list that a Sequential is in."""
    scope = body.call.scope
    name = re.sub(r"\W", "", scope.kind.rpartition(".")[2])
    if name == "Sequential":
        home = scope.path.split(".")[-2] if "." in scope.path else "net"
        name = "".join(word.capitalize() for word in home.rstrip("s").split("_"))
    return name[:1].upper() + name[1:]


def _finish(model: Model) -> None:
    body = model.body
    model.dims = {atom: atom for atom in body.formals()}
    kind = known(body)
    if kind is not None:
        model.kind = kind.name
        if body.library or all(_starts_as(each, kind) and kind.fits(each) for each in model.bodies):
            model.library = kind
            return
        model.name = kind.name
    _vary(model)


def _starts_as(body: Body, kind: Known) -> bool:
    return all(body.drawn(own)[:2] == (kind.starts[own.name][0], False) and (
        own.start.args == kind.starts[own.name][1] or own.start.kind in ("kaiming_uniform", "fan_uniform"))
        for own in body.own)  # fmt: skip


def _vary(model: Model, twin: Model | None = None) -> None:
    """Numbers that differ between calls, those of a twin too, become formals."""
    taken: set[str] = {own.name for own in model.body.own}
    model.varying = {}
    theirs = _roles(twin.body) if twin is not None else []
    for at, (const, role) in enumerate(zip(model.body.constants, _roles(model.body), strict=True)):
        values = {repr(body.constants[at].value) for body in model.bodies}
        if twin is not None and role in theirs:
            values |= {repr(body.constants[theirs.index(role)].value) for body in twin.bodies}
        if len(values) > 1:
            model.varying[const] = free(re.sub(r"\d+$", "", const.role), taken)


def _roles(body: Body) -> list[tuple[str, str]]:
    """The parameter that starts with each number of a body, or "", and the number's role."""
    owners = {const: own.name for own in body.own for const in own.numbers}
    return [(owners.get(const, ""), const.role) for const in body.constants]


def _pair(model: Model, leaves: Sequence[Model]) -> None:
    """Finds the model that is another one without its bias: they are one, with a formal `bias`."""
    plain = model.library is None and model.kind in LIBRARY and LIBRARY[model.kind].bias
    if not plain or not _biased(model):
        return
    roles = [role for role in _roles(model.body) if role[0] != "bias"]
    for other in leaves:
        alike = other.kind == model.kind and other.library is None and not (other.is_bare or _biased(other))
        if alike and _roles(other.body) == roles and _weight(other.body) == _weight(model.body):
            _vary(model, other)
            _vary(other, model)
            model.bare, other.is_bare = other, True
            return


def _biased(model: Model) -> bool:
    return any(own.name == "bias" for own in model.body.own)


def _weight(body: Body) -> tuple[tuple[str, bool, int], list[int]]:
    """How the weight starts, and the sizes of its dims that are numbers."""
    own = next(each for each in body.own if each.name == "weight")
    return body.drawn(own), [atom.size for atom in atoms(own.value.dims) if atom.fixed]


def _pass_constants(body: Body, made: dict[Body, Model]) -> None:
    """Gives each layer the numbers that its model is called with; they are numbers of the model it
    stands in, and may differ there in turn."""
    for layer in body.layers:
        layer.constants = _numbers(made[layer.body], layer)
        if layer.index == 0:
            body.constants += layer.constants


def _numbers(model: Model, layer: Layer) -> list[Const]:
    at = [model.body.constants.index(const) for const in model.varying]
    names = model.varying.values()
    return [Const(layer.body.constants[number].value, name) for number, name in zip(at, names, strict=True)]


def merge_dims(made: dict[Body, Model], root: Model, config: Mapping[int, str]) -> None:
    """Two formals become one where every call passes one dim for both, and no tensor has both: from
    the whole down to the layers. Those of the whole become one where one field of the configuration
    is the size of both; without a configuration, widths between its layers that are of one size."""
    widths = set() if config else _widths(root)
    # Heads of one number have one width, which few configurations have a field for.
    wide = "heads" in config.values()
    of_heads = {atom for atom in root.dims if wide and "head_dim" in _called(atom) and atom.size not in config}
    _merge(root, [[(atom.size if atom in widths or atom in of_heads else config.get(atom.size, atom),)
                   for atom in root.dims]])  # fmt: skip
    ordered = sorted(dict.fromkeys(made.values()), key=lambda model: -height(model.body))
    passed: dict[Model, list[list[tuple[Atom, ...]]]] = {}
    for outer in ordered:
        if outer in passed and not outer.kind:
            _merge(outer, passed[outer])
        for layer in outer.body.layers:
            inner = made[layer.body]
            terms = [layer.terms[atom] for atom in layer.body.formals()]
            shown = [tuple(outer.dims.get(atom, atom) for atom in flat(term)) for term in terms]
            passed.setdefault(inner, []).append(shown)


def _widths(root: Model) -> set[Atom]:
    """The dims of features between the layers of the whole, which no input and no result has."""
    body = root.body
    outer = {atom for value in [*body.inputs, *body.results] for atom in atoms(value.dims)}
    given = [value.dims for value in body.live() if value.expr is not None and value.expr.layer is not None]
    inner = {atom for dims in given for atom in atoms(dims)}
    return {atom for atom in inner - outer if atom in root.dims}


def _merge(model: Model, passed: Sequence[Sequence[tuple[Any, ...]]]) -> None:
    formals = list(model.dims)
    for at, one in enumerate(formals):
        for after in range(at + 1, len(formals)):
            other = formals[after]
            if model.dims[one] is not one or model.dims[other] is not other:
                continue
            alike = all(terms[at] == terms[after] for terms in passed) and _roles_agree(one, other)
            if alike and _apart(model, one, other):
                model.dims[other] = one
    for atom in formals:
        model.dims[atom] = model.dims[model.dims[atom]]


def _roles_agree(one: Atom, other: Atom) -> bool:
    """Whether no operator calls two dims by different roles, as heads and the width of each."""
    mine, theirs = _called(one), _called(other)
    return not (mine and theirs) or bool(mine & theirs)


def _called(atom: Atom) -> set[str]:
    """The roles of a dim by the operators that have it."""
    return {name for name, rank in atom.hints.items() if 0 <= rank <= 1}


def _apart(model: Model, one: Atom, other: Atom) -> bool:
    """Whether no tensor, and no layer's weight of two dims, would have one dim twice."""
    group = {atom for atom, first in model.dims.items() if first in (one, other)}
    for value in model.body.tensors():
        if len([atom for atom in atoms(value.dims) if atom in group]) > 1:
            return False
    for layer in model.body.layers:
        if len([a for a in atoms(layer.terms.values()) if a in group]) > 1 and not layer.body.layers:
            return False
    return True
