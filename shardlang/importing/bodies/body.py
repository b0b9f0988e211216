"""The inside of a model whose dims have no names yet: values, expressions, parameters, layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardlang.graph.graph import Init
from shardlang.importing.authors.lines import AuthorLine, Wish
from shardlang.importing.bodies.dims import Atom, Mismatch, Term, atoms, flat, fresh, join, pairs
from shardlang.importing.steps.calls import Call
from shardlang.importing.steps.nodes import Node, Stored


class Bare(str):
    """A word that is written without quotes, as a type."""


@dataclass(eq=False)
class Const:
    """A number of the module; where equal models differ in it, it becomes a formal named `role`.
    usual: the number that the operator takes where none is given, so that others alone are
    written. formula: what it is, where it depends on the size of an input; of several numbers one
    for each. of: the dims whose size it is, at all sizes, to a `power`."""

    value: Any
    role: str
    usual: Any = None
    formula: Any = None
    of: Term = ()
    power: float = 1


@dataclass(eq=False)
class Expr:
    """`word(operands, named -> [into])`. named: constants, or terms for dims. word: an operator, an
    infix sign, or "" for a call of `layer`. keys: names of the last operands, as `bias = x`."""

    word: str
    operands: list[Any]
    named: dict[str, Any] = field(default_factory=dict)
    into: list[Term] | None = None
    layer: Layer | None = None
    keys: tuple[str, ...] = ()


@dataclass(eq=False)
class Value:
    """A tensor. base: what it is a view of. expr: None for inputs and parameters. name: the
    author's, if any. wishes: names that lines of the author's would give it, the best first.
    results: of a call with several, all of them. counts: it numbers
    places. made: at which places its dims are new ones of its operator."""

    dims: list[Term]
    kind: str = ""
    expr: Expr | None = None
    base: Value | None = None
    name: str = ""
    written: Value | None = None
    results: tuple[Value, ...] = ()
    counts: bool = False
    made: frozenset[int] = frozenset()
    wishes: list[Wish] = field(default_factory=list)


@dataclass(eq=False)
class Own:
    """A parameter or state of a model: `name` within it, with its start."""

    name: str
    value: Value
    stored: Stored
    start: Init
    state: bool = False
    numbers: list[Const] = field(default_factory=list)


# Starts whose numbers follow from the dims of a weight, so that they are no constants.
BY_DIMS = ("kaiming_uniform", "xavier_uniform", "fan_uniform")


@dataclass(eq=False)
class Layer:
    """A layer: the attribute, the body of its first call, and what its dims are here."""

    path: str
    body: Body
    terms: dict[Atom, Term]
    others: list[Body] = field(default_factory=list)
    constants: list[Const] = field(default_factory=list)
    array: Array | None = None
    index: int = 0


@dataclass(eq=False)
class Array:
    """Equal layers in a list, `name[0]` to the last."""

    name: str
    layers: list[Layer]


@dataclass(eq=False)
class Body:
    """The inside of one call of a module. library: the model of `std.recurrent` that it is."""

    call: Call
    library: str = ""
    inputs: list[Value] = field(default_factory=list)
    own: list[Own] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    # Pairs of dims of which the first is declared with the size of the second.
    copies: list[tuple[Atom, Atom]] = field(default_factory=list)
    # Dims that the model declares as products or sums of others.
    products: list[Atom] = field(default_factory=list)
    form: str = ""
    constants: list[Const] = field(default_factory=list)
    # Names of its parameters, layers and arrays, once these are final.
    members: dict[Any, str] = field(default_factory=dict)
    # Its formals, without and with copied ones, while the bodies around it are made; () afterwards.
    final: tuple[list[Atom], ...] = ()
    # The last value that a line of source names.
    lines: dict[tuple[str, str], Value] = field(default_factory=dict)

    def add(self, dims: Sequence[Term], expr: Expr, kind: str = "", node: Node | None = None) -> Value:
        """A value that an expression computes."""
        inner = expr.layer is not None and not expr.layer.body.call.scope.kind.startswith("torch.")
        value = Value(list(dims), kind, expr, name="" if inner else authors_name(node))
        self.values.append(value)
        # Of the steps of one line the last is what the line names.
        if node is not None and value.name:
            before = self.lines.get((value.name, node.place))
            if before is not None:
                before.name = ""
            self.lines[value.name, node.place] = value
        if node is not None and (node.code or inner):
            self._suggest(value, node, inner)
        return value

    def _suggest(self, value: Value, node: Node, inner: bool) -> None:
        """Gives a value the names of the lines that its step is from: of those of one line, the
        last has them."""
        lines = self.lines_of(node, inner)
        for at, line in enumerate(lines):
            wish, place = line.wish, str(lines[at:])
            if wish is not None:
                before = self.lines.get((wish.name, place))
                if before is not None and wish in before.wishes:
                    before.wishes.remove(wish)
                self.lines[wish.name, place] = value
                value.wishes.append(wish)

    def lines_of(self, node: Node, called: bool) -> list[AuthorLine]:
        """The lines of a step from this body on, innermost first; of a call those of this body
        alone."""
        mine = self.call.scope.call
        depth = next((at + 1 for at, scope in enumerate(node.scopes) if scope.call == mine), 0)
        levels = node.levels[depth : depth + 1] if called else node.levels[depth:]
        return [line for level in reversed(levels) for line in reversed(level)]

    def tensors(self) -> list[Value]:
        return [*self.inputs, *(own.value for own in self.own), *self.values]

    def unify(self, left: Term, right: Term) -> None:
        """Makes one of two terms; Mismatch if their sizes differ, or a tensor would have it
        twice."""
        for a, b in pairs(left, right):
            a, b = flat((a,))[0], flat((b,))[0]
            if a is b:
                continue
            if self.together(a, b):
                raise Twice(a, b)
            join(a, b)

    def live(self) -> list[Value]:
        """The values that the results need, in order."""
        needed: set[Value] = set()
        stack = list(self.results)
        while stack:
            value = stack.pop()
            if value not in needed:
                needed.update((value, *value.results))
                stack += [each for each in (value.expr.operands if value.expr else ()) if isinstance(each, Value)]
        return [value for value in self.values if value in needed]

    def weight(self, own: Own) -> Own:
        """The parameter by whose dims one starts: itself, or the weight beside a bias."""
        name = f"{own.name.removesuffix('bias')}weight" if own.start.kind == "fan_uniform" else own.name
        return next(each for each in self.own if each.name == name)

    def drawn(self, own: Own) -> tuple[str, bool, int]:
        """How a parameter starts: if that is by dims, also whether the module's matrix has them
        turned, and how many such parts its fans count."""
        kind = own.start.kind
        if kind not in BY_DIMS:
            return kind, False, 1
        stored = self.weight(own).stored
        counts = stored.transposed or kind == "xavier_uniform"
        return kind, stored.transposed, stored.part[1] if counts else 1

    def together(self, a: Atom, b: Atom) -> bool:
        """Whether a tensor has both."""
        return any({a, b} <= set(atoms(value.dims)) for value in self.tensors())

    def formals(self, copied: bool = True) -> list[Atom]:
        """The dims that parameters have, here or in layers, in the order in which they appear, and
        those that inputs have in products alone; with them (copied) those of which the model
        declares others of their size."""
        if self.final:
            return self.final[copied]
        needed = dict.fromkeys(atom for own in self.own for atom in atoms(own.value.dims))
        passed = [flat(layer.terms[f]) for layer in self.layers for f in layer.body.formals(copied)]
        needed.update(dict.fromkeys(atom for term in passed for atom in term))
        needed.update(dict.fromkeys(self._joined()))
        made = self.sources()
        if copied:
            needed.update(dict.fromkeys(made.values()))
            needed.update(dict.fromkeys(atom for each in self.products for atom in flat(each.product + each.sum)))
        first = [atom for value in self.inputs for atom in atoms(value.dims)]
        rest = [atom for term in passed for atom in term]
        owned = [atom for own in self.own for atom in atoms(own.value.dims)]
        ordered = dict.fromkeys([*first, *rest, *owned, *needed])
        return [atom for atom in ordered if atom in needed and atom not in made and not (atom.fixed or atom.declared)]

    def _joined(self) -> list[Atom]:
        """The dims that inputs have in products alone, which no call could bind."""
        terms = [flat(term) for value in self.inputs for term in value.dims]
        alone = {term[0] for term in terms if len(term) == 1}
        return [atom for term in terms if len(term) > 1 for atom in term if atom not in alone]

    def sources(self) -> dict[Atom, Atom]:
        """The dims that the model declares with the size of another one, and that one: of those
        that are linked, the first that an input or a parameter has."""
        groups: list[dict[Atom, None]] = []
        for pair in self.copies:
            linked = dict.fromkeys(atom for one in pair for atom in flat((one,)))
            apart = []
            for group in groups:
                if group.keys() & linked.keys():
                    linked = {**group, **linked}
                else:
                    apart.append(group)
            groups = [*apart, linked]
        # A call binds the dims of what it gives.
        bound = {atom for value in self.inputs for atom in atoms(value.dims)}
        values = [*self.inputs, *(own.value for own in self.own)]
        given = dict.fromkeys(atom for value in values for atom in atoms(value.dims))
        given |= dict.fromkeys(atom for layer in self.layers for atom in atoms(layer.terms.values()))
        found = {}
        for group in groups:
            own = next((atom for atom in group if atom.declared), next(iter(group)))
            first = next((atom for atom in given if atom in group), own)
            found.update({atom: first for atom in group if atom is not first and atom not in bound})
        return found


class Twice(Mismatch):
    """Two dims of one tensor that would become one."""

    def __init__(self, left: Atom, right: Atom) -> None:
        super().__init__()
        self.left, self.right = left, right


def authors_name(node: Node | None) -> str:
    """The name that the line of source gives what it computes, if it is not one that it reads."""
    if node is None or "=" not in node.code:
        return ""
    name, _, rest = node.code.partition("=")
    name = name.strip()
    if not (name.isidentifier() and name.isascii()) or rest.startswith("="):
        return ""
    return "" if re.search(rf"\b{name}\b", rest) else name


def free(name: str, taken: set[str]) -> str:
    """A name that is not taken, and is from now on."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    taken.add(found)
    return found


def new_dims(shape: Sequence[int]) -> list[Term]:
    """A new dim for each size; 1 is the literal one."""
    return [fresh(each) for each in shape]
