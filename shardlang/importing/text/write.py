"""Models -> their text, before the formatter."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from shardlang.disk.overwrite_guard import MODEL_MARK
from shardlang.importing.bodies.body import BY_DIMS, Body, Layer, Own, Value
from shardlang.importing.bodies.dims import Atom, Term, atoms, flat
from shardlang.importing.bodies.library import FUNCTIONS, arguments
from shardlang.importing.bodies.models import Model
from shardlang.importing.text.names import Namer, layer_name, own_name
from shardlang.importing.text.statements import Statements
from shardlang.importing.text.terms import Terms

# The head of a forward that is longer is written on several lines.
_WIDE = 110


class Writer:
    """Writes the models of one file."""

    def __init__(self, made: dict[Body, Model], namer: Namer, root: Model, free: Container[str]) -> None:
        """free: dims of the whole that have no default."""
        self.made, self.namer, self.root, self.free = made, namer, root, free
        self.terms = Terms(made, namer)

    def text(self, place: str, comments: list[str], own: Mapping[str, Sequence[str]]) -> str:
        """The file. own: names that it uses of files of its own."""
        models = list(dict.fromkeys(self.made.values()))
        parts = [f"{MODEL_MARK} `{place}`.\n", *(f"## {line}\n" for line in comments)]
        used = {(model.library.home, model.library.name) for model in models if model.library is not None}
        words = {value.expr.word for model in models for value in model.body.live() if value.expr is not None}
        used |= {(FUNCTIONS[word], word) for word in words & FUNCTIONS.keys()}
        parts += _uses(used | {(home, name) for home, names in own.items() for name in names})
        parts += [self.model(model) for model in models if model.library is None and not model.is_bare]
        return "".join(parts)

    def model(self, model: Model) -> str:
        if model.bare is not None:
            return self._either(model, model.bare)
        members = [*self._copies(model), *self._layers(model), *self._params(model)]
        inside = [f"  {line}\n".replace("\n ", "\n   ") for line in members]
        return f"\n{self._formals(model)}) {{\n{''.join(inside)}\n{self._forward(model)}}}\n"

    def _either(self, model: Model, bare: Model) -> str:
        """A model with a bias, or without."""
        names = [own.name for own in model.body.own]
        params = [f"  {line}\n" for line in self._params(model)]
        shared = [line for name, line in zip(names, params, strict=True) if name != "bias"]
        bias = params[names.index("bias")]
        branches = f"  if bias {{\n{bias}\n{self._forward(model)}  }} else {{\n{self._forward(bare)}  }}\n"
        return f"\n{self._formals(model)}) {{\n{''.join(shared)}{branches}}}\n"

    # Members.

    def _formals(self, model: Model) -> str:
        found = []
        for atom in model.formals():
            name = self.terms.name(model, atom)
            default = f" = {atom.size}" if model is self.root and name not in self.free else ""
            found.append(f"{name}: dim{default}")
        for const, name in model.varying.items():
            found.append(f"{name}: {_kind(const.value)}")
        found += ["bias: bool = true"] if model.bare is not None else []
        return wrapped(f"model {model.name}(", found)

    def _copies(self, model: Model) -> list[str]:
        live = dict.fromkeys(atom for value in model.body.live() for atom in atoms(value.dims))
        there = dict.fromkeys(self.terms.first(model, atom) for atom in (*live, *model.dims))
        sizes = [atom for atom in there if atom.declared and atom not in self.terms.passed(model)]
        plain = [atom for atom in sizes if not (atom.product or atom.sum)]
        found = {self.terms.name(model, atom): self._declared(model, atom) for atom in plain}
        for mine, theirs in model.body.sources().items():
            if mine in live and mine not in model.dims:
                found[self.terms.name(model, mine)] = self.terms.name(model, theirs)
        found |= {self.terms.name(model, atom): self._declared(model, atom) for atom in sizes}
        return [f"dim {new} = {old}" for new, old in found.items()]

    def _declared(self, model: Model, atom: Atom) -> str:
        known = self.terms.known(model)
        if atom.product and all(model.dims.get(each, each) in known for each in flat(atom.product)):
            return self.terms.term(model, atom.product)
        if atom.sum:
            return self.terms.sum(model, atom)
        if atom.pairs_of and all(self.terms.first(model, each) in known for each in flat(atom.pairs_of)):
            side = self.terms.term(model, atom.pairs_of)
            return f"{side} * ({side} - 1) / 2" if " " not in side else str(atom.size)
        return self.terms.formula(model, atom.formula) if atom.formula else str(atom.size)

    def _layers(self, model: Model) -> list[str]:
        lines = []
        for layer in model.body.layers:
            if layer.index:
                continue
            inner = self.made[layer.body]
            name = layer_name(model.body, layer)
            many = f"[{len(layer.array.layers)}]" if layer.array else ""
            kind = inner.library.name if inner.library else inner.name
            lines.append(wrapped(f"layer {name}{many} = {kind}(", self._arguments(model, layer, inner)) + ")")
        return lines

    def _arguments(self, model: Model, layer: Layer, inner: Model) -> list[str]:
        given: dict[Atom, str] = {}
        for mine, theirs in zip(inner.body.formals(), layer.body.formals(), strict=True):
            given.setdefault(inner.dims[mine], self.terms.term(model, layer.terms[theirs]))
        terms = list(given.values())
        if inner.library is not None:
            return arguments(inner.library, layer.body, terms)
        numbers = [f"{const.role} = {self.terms.number(model, const)}" for const in layer.constants]
        return terms + numbers + ["bias = false"] * inner.is_bare

    def _params(self, model: Model) -> list[str]:
        lines = []
        for own in model.body.own:
            head = f"{'state' if own.state else 'param'} {own_name(model.body, own)}"
            lines.append(f"{head}: {self.terms.type(model, own.value)} = {self._start(model, own)}")
        return lines

    def _start(self, model: Model, own: Own) -> str:
        kind = own.start.kind
        if kind in BY_DIMS:
            fans = self._fans(model, model.body.weight(own))
            if kind == "fan_uniform":
                text = f"({fans[0]})" if " " in fans[0] else fans[0]
                return f"uniform(-({text} ** -0.5), {text} ** -0.5)"
            return f"{kind}({', '.join(fans[: len(own.start.args)])})"
        return f"{kind}({', '.join(self.terms.number(model, each) for each in own.numbers)})"

    def _fans(self, model: Model, own: Own) -> list[str]:
        """How many numbers of the module's matrix, of which this is a part, each output sums, and
        how many outputs read each."""
        inner, outer = own.value.dims[1:], [own.value.dims[0], *own.value.dims[2:]]
        count = own.stored.part[1]
        fans = [self._product(model, inner), f"{count} * " * (count > 1) + self._product(model, outer)]
        return fans[::-1] if own.stored.transposed else fans

    def _product(self, model: Model, dims: list[Term]) -> str:
        return " * ".join(self.terms.term(model, term) for term in dims if flat(term)) or "1"

    # Forward.

    def _forward(self, model: Model) -> str:
        body = model.body
        statements = Statements(model, self.terms)
        lines, results = statements.lines()
        inputs = ", ".join(f"{statements.names[value]}: {self.terms.type(model, value)}" for value in body.inputs)
        made = "" if any(_unnamed(value, model) for value in body.results) else " -> " + ", ".join(
            self.terms.type(model, value) for value in body.results)  # fmt: skip
        head = f"  forward({inputs}){made} {{\n"
        if len(head) > _WIDE:
            head = f"  forward(\n    {inputs}\n  ){made} {{\n"
        return "".join([head, *(f"    {line}\n" for line in lines), f"    return {', '.join(results)}\n", "  }\n"])


def _uses(found: set[tuple[str, str]]) -> list[str]:
    """A `use` for each file of the library."""
    homes = sorted({home for home, _ in found})
    lines = [f"use {home}: {', '.join(sorted(name for each, name in found if each == home))}\n" for home in homes]
    return ["\n", *lines] if lines else []


def _unnamed(value: Value, model: Model) -> bool:
    """Whether a value has a dim that an operator has made for itself."""
    known = model.known()
    return any(atom.called or not (model.dims.get(atom, atom) in known or atom.fixed) for atom in atoms(value.dims))


def wrapped(head: str, parts: Sequence[str]) -> str:
    """Parts behind an open bracket, on lines of at most 110 columns."""
    lines = [head]
    for at, part in enumerate(parts):
        text = part + ", " * (at < len(parts) - 1)
        if len(lines[-1]) + len(text) > 110 and at:
            lines[-1] = lines[-1].rstrip()
            lines.append(" " * len(head))
        lines[-1] += text
    return "\n".join(lines)


def _kind(value: Any) -> str:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else (
        "str" if isinstance(value, str) else "float")  # fmt: skip
