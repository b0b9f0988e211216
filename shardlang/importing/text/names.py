"""Names of the dims of models: from the whole, which has the user's, down to its layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import shardlang.ops.all_families  # noqa: F401  (fills the registry)
from shardlang.importing.bodies.body import Body, Layer, Own, Value, free
from shardlang.importing.bodies.dims import Atom, atoms, flat
from shardlang.importing.bodies.library import FUNCTIONS, LIBRARY, known
from shardlang.importing.bodies.models import Model, height
from shardlang.ops.declaration import REGISTRY
from shardlang.syntax.tables import tables

# Fields of a configuration, and what a dim of that size is called.
FIELDS = {
    "hidden_size": "d", "n_embd": "d", "d_model": "d", "dim": "d", "embed_dim": "d", "intermediate_size": "ffn",
    "n_inner": "ffn", "ffn_dim": "ffn", "d_ff": "ffn", "vocab_size": "vocab", "num_attention_heads": "heads",
    "encoder_attention_heads": "heads", "decoder_attention_heads": "heads",
    "n_head": "heads", "num_heads": "heads", "num_key_value_heads": "kv_heads", "head_dim": "head_dim",
    "max_position_embeddings": "max_len", "n_positions": "max_len", "block_size": "max_len",
    "d_kv": "head_dim", "relative_attention_num_buckets": "buckets", "projection_dim": "projection",
    "encoder_ffn_dim": "ffn", "decoder_ffn_dim": "ffn", "num_mel_bins": "mels",
    "type_vocab_size": "types", "num_labels": "labels", "num_channels": "channels", "num_classes": "classes",
}  # fmt: skip
_ROLES = frozenset(FIELDS.values()) - {"channels", "labels", "classes"}
# Ranks of names: by the configuration, by an argument of the class, by the layer that makes a dim,
# of a product of dims, if nothing else says, by a layer of the caller.
_CONFIG, AUTHOR, _LAYER, _PRODUCT, _LAST, _PASSED = 4, 7, 8, 58, 60, 90
# Layers that widen the dim of a transformer.
_FFN = ("fc1", "c_fc", "fc_in", "wi", "lin1", "linear1", "dense_h_to_4h")
# The last dims of what a model of the library is called with, behind its channels.
_SPATIAL = {"Conv1d": ("length",), "ConvTranspose1d": ("length",)} | dict.fromkeys(
    ("Conv2d", "ConvTranspose2d", "BatchNorm2d", "GroupNorm"), ("height", "width"))  # fmt: skip


@dataclass
class Namer:
    """names: of each dim, per model, by the atom that stands for it. guessed: dims without a name
    that says anything. weak: dims whose names say only what a model does with them, which inner
    ones do not take over. vague: inner dims that are called with such; lent: the names of arguments
    of the class that inner dims are called with, which they take over if no call is vague."""

    made: Mapping[Body, Model]
    config: Mapping[int, str]
    names: dict[Model, dict[Atom, str]] = field(default_factory=dict)
    guessed: list[str] = field(default_factory=list)
    weak: set[tuple[Model, Atom]] = field(default_factory=set)
    vague: set[Atom] = field(default_factory=set)
    lent: dict[Atom, str] = field(default_factory=dict)
    _authors: set[tuple[Model, Atom]] = field(default_factory=set)

    @property
    def attends(self) -> bool:
        """Whether the whole is a transformer."""
        return any(value.expr is not None and value.expr.word == "attention"
                   for body in self.made for value in body.values)  # fmt: skip

    def give(self, root: Model) -> None:
        """Names the dims of all models."""
        from_above: dict[Model, list[Mapping[Atom, str]]] = {root: []}
        for model in sorted(dict.fromkeys(self.made.values()), key=lambda model: -height(model.body)):
            self.names[model] = self._named(model, from_above.get(model, []))
            for layer in model.body.layers:
                inner = self.made[layer.body]
                passed = {}
                for atom in layer.body.formals():
                    term = flat(layer.terms[atom])
                    here = inner_atom(inner, layer.body, atom)
                    if len(term) > 1:
                        here.hint("inner", _PRODUCT)
                    elif (model, model.dims.get(term[0], term[0])) in self.weak:
                        here.hint(self._shown(model, term[0]), _PASSED)
                        self.vague.add(here)
                        continue
                    elif (model, model.dims.get(term[0], term[0])) in self._authors:
                        self.lent[here] = self._shown(model, term[0])
                    passed[here] = self._shown(model, term[0]) if len(term) == 1 else ""
                from_above.setdefault(inner, []).append(passed)
            for value in model.body.live():
                if value.expr is not None and value.expr.layer is not None:
                    inner = self.made[value.expr.layer.body]
                    from_above[inner].append(self._given(model, value, inner))

    def _given(self, model: Model, value: Value, inner: Model) -> dict[Atom, str]:
        """The names of the dims that a call binds."""
        found = {}
        assert value.expr is not None
        for operand, formal in zip(value.expr.operands, inner.body.inputs, strict=True):
            for mine, theirs in zip(operand.dims, formal.dims, strict=False):
                outer, here = flat(mine), flat(theirs)
                if len(outer) != 1 or len(here) != 1:
                    continue
                if (model, model.dims.get(outer[0], outer[0])) not in self.weak:
                    found[here[0]] = self._shown(model, outer[0])
                    continue
                # Another call may give a name that does not fit this one.
                found[here[0]] = ""
                if not here[0].hints:
                    here[0].hint(self._shown(model, outer[0]), _PASSED)
        return found

    def _shown(self, model: Model, atom: Atom) -> str:
        return self.names[model].get(model.dims.get(atom, atom), "")

    def _named(self, model: Model, above: list[Mapping[Atom, str]]) -> dict[Atom, str]:
        if model.kind:
            return _of_library(model)
        ranked: dict[Atom, dict[str, int]] = {}
        copied = model.body.sources()
        for atom in _atoms(model):
            ranked[atom] = {"key": 0} if atom in copied else dict(atom.hints)
            self._rank(model, atom, self._passed(atom, above), ranked[atom])
        found: dict[Atom, str] = {}
        taken = names_of_members(model.body) | set(names_of_inputs(model.body))
        called = _called(model)
        taken |= {*called.values(), *(atom.called for atom in ranked if atom in copied or atom.declared)}
        # Of two dims of the whole that would have one name, that of a result has it.
        results = () if above else model.body.results
        given = {model.dims.get(atom, atom) for value in results for atom in flat(sum(value.dims, ()))}
        first = {
            atom: (bool(atom.sum) and atom not in model.dims, min(hints.values(), default=99), atom not in given)
            for atom, hints in ranked.items()
        }
        for atom in sorted(ranked, key=lambda atom: first[atom]):
            hints = ranked[atom]
            if atom.called and (atom in called or atom not in model.dims):
                found[atom] = called.get(atom, atom.called)
                continue
            found[atom] = self._free(model, atom, _ordered(hints), taken)
            taken.add(found[atom])
            if hints.get(found[atom], _LAYER) >= _LAYER:
                self.weak.add((model, atom))
            elif hints.get(found[atom]) == AUTHOR:
                self._authors.add((model, atom))
        return found

    def _rank(self, model: Model, atom: Atom, passed: set[str], hints: dict[str, int]) -> None:
        """Adds what else a dim may be called."""
        if len(passed) == 1 and "" not in passed:
            name = passed.pop()
            # What a table calls its rows says less than a field of the configuration.
            rank = 0 if self.config.get(atom.size) == name else 2
            hints[name] = min(rank, hints.get(name, rank))
        for name, rank in self._suggested(model, atom):
            hints[name] = min(rank, hints.get(name, rank))
        if atom.size in self.config and atom in model.dims:
            hints[self.config[atom.size]] = min(_CONFIG, hints.get(self.config[atom.size], _CONFIG))
        if min(hints.values(), default=_PASSED) >= _PASSED:
            hints.update(_placed(model, atom))

    def _passed(self, atom: Atom, above: list[Mapping[Atom, str]]) -> set[str]:
        """The names that a dim of a model is called with."""
        passed = {names[atom] for names in above if atom in names}
        return passed - {self.lent.get(atom, "")} if atom in self.vague else passed

    def _suggested(self, model: Model, atom: Atom) -> Iterator[tuple[str, int]]:
        """Names by what makes a dim: here, or within the layers that it is passed to."""
        yield from _made_by(model, atom, self.attends)
        for layer in model.body.layers:
            inner = self.made[layer.body]
            for theirs, term in layer.terms.items():
                if flat(term) != (atom,) or inner.kind:
                    continue
                there = inner_atom(inner, layer.body, theirs)
                for name, rank in [*there.hints.items(), *self._suggested(inner, there)]:
                    yield name, rank + 10
                    yield f"{_prefix(model.body, layer)}_{name}", rank + 20

    def _free(self, model: Model, atom: Atom, hints: list[str], taken: set[str]) -> str:
        for name in hints:
            if name not in taken:
                return name
        if not hints:
            self.guessed.append(f"{model.name}: a dim of {atom.size}")
        return free(re.sub(r"\d+$", "", hints[0]) if hints else "d", set(taken))


def _placed(model: Model, atom: Atom) -> dict[str, int]:
    """The name of a dim of an input by its place alone."""
    for value in model.body.inputs:
        for at, term in enumerate(value.dims):
            if flat(term) == (atom,):
                heads = any("heads" in each.hints for each in flat(value.dims[-3] if len(value.dims) > 2 else ()))
                usual = {3: ("batch", "seq", "d"), 4: ("batch", "channels", "height", "width")}
                names = ("keys",) * 4 if heads else usual.get(len(value.dims), ("batch",))
                more = value is not model.body.inputs[0] and value.name
                return {name: _LAST + number for name in names[at : at + 1]
                        for number, name in enumerate([name, *[f"{value.name}_{name}"] * bool(more)])}  # fmt: skip
    return {}


def _ordered(hints: Mapping[str, int]) -> list[str]:
    """Names by rank. Where two dims have one role, the second has its layer's name before that."""
    names = sorted(hints, key=lambda name: hints[name])
    if names and names[0] in _ROLES:
        best = names[0]
        names.sort(key=lambda name: 0 if name == best or hints[name] <= _CONFIG else 2 - name.endswith(f"_{best}"))
    return names


def _of_library(model: Model) -> dict[Atom, str]:
    """The names in a model that is one operator: as in the library."""
    found = dict(zip(model.body.formals(), LIBRARY[model.kind].dims if model.kind in LIBRARY else (), strict=False))
    places = ("batch", "channels", *_SPATIAL[model.kind]) if model.kind in _SPATIAL else ()
    for value in [*model.body.inputs, *model.body.live()]:
        for at, term in enumerate(value.dims):
            for atom in flat(term):
                found.setdefault(atom, places[at] if len(places) == len(value.dims) else "...")
    return found


def _called(model: Model) -> dict[Atom, str]:
    """Names of the dims of inputs that operators have named: of two of one name the second has the
    name of its input too, or gets a number."""
    found: dict[Atom, str] = {}
    taken = set(names_of_inputs(model.body))
    for value in model.body.inputs:
        for atom in atoms(value.dims):
            if atom.called and atom not in found:
                name = f"{value.name}_{atom.called}" if atom.called in taken and value.name else atom.called
                found[atom] = free(name, taken)
    return found


def _made_by(model: Model, atom: Atom, attends: bool) -> Iterator[tuple[str, int]]:
    """Names for a dim that only layers make: `out` in a result, else `hidden`, or by the layer;
    `ffn` where the whole attends."""
    body = model.body
    if any(atom in flat(_feature(value)) for value in body.results if value.dims):
        yield "out", _LAYER
    for value in body.live():
        layer = value.expr.layer if value.expr is not None else None
        if layer is not None and value.dims and flat(_feature(value)) == (atom,):
            if attends and layer_name(body, layer) in _FFN:
                yield "ffn", _LAYER - 2
            yield "hidden", _LAYER + 1
            yield f"{_prefix(body, layer)}_out", _LAYER + 2
            yield f"{layer_name(body, layer)}_out", _LAYER + 3
        read = value.expr.operands[:1] if layer is not None and value.expr is not None else []
        if layer is not None and read and read[0].dims and flat(_feature(read[0], layer)) == (atom,):
            yield f"{_prefix(body, layer)}_in", _LAST - 1


def _prefix(body: Body, layer: Layer) -> str:
    """A layer's name at the start of a dim's, or the name of the Sequential that it is in."""
    name = layer_name(body, layer)
    return re.sub(r"_\d+$", "", name) if re.search(r"\.\d+$", layer.path) else (
        name.removesuffix("_model").rstrip("_"))  # fmt: skip


def _feature(value: Value, reads: Layer | None = None) -> tuple[Atom, ...]:
    """The dim of features: the last, or the channels of an image, as that which a convolution
    reads."""
    kind = known(reads.body) if reads is not None else None
    image = len(value.dims) > 2 and any(atom.called for atom in flat(value.dims[-1]))
    image = image or (kind is not None and kind.name in _SPATIAL and len(value.dims) > 2)
    return value.dims[1 if image else -1]


def inner_atom(model: Model, body: Body, atom: Atom) -> Atom:
    """The dim of a model that a dim of one of its bodies is."""
    at = body.formals().index(atom)
    own = model.body.formals()[at]
    return model.dims.get(own, own)


def _atoms(model: Model) -> list[Atom]:
    """The dims of a model in order of appearance: of inputs, parameters, layers, values."""
    body = model.body
    known = model.known()
    terms = [*(term for value in body.inputs for term in value.dims), tuple(body.formals()),
             *(term for value in body.live() for term in value.dims)]  # fmt: skip
    found = dict.fromkeys(model.dims.get(atom, atom) for atom in atoms(terms))
    return [atom for atom in found if model.kind or atom.called or atom in known]


def names_of_inputs(body: Body) -> list[str]:
    """The names of the inputs of the whole, which are the module's; of an inner model none is held
    to them."""
    return [] if body.call.scope.path else [identifier(value.name) for value in body.inputs]


def names_of_members(body: Body) -> set[str]:
    """The names of layers and parameters of a model."""
    return set(_members(body).values())


def layer_name(body: Body, layer: Layer) -> str:
    """The name of a layer: its attribute; a list's name for an array."""
    return _members(body)[layer.array or layer]


def own_name(body: Body, own: Own) -> str:
    """The name of a parameter or state."""
    return _members(body)[own]


def _members(body: Body) -> Mapping[Any, str]:
    """The name of each parameter, layer and array: of an input's name `_layer` or `_param` is the
    end, and two that would have one get numbers."""
    if not body.members:
        wanted: dict[Any, str] = {own: own.name if body.library else identifier(_shortened(own, body))
                                  for own in body.own}  # fmt: skip
        wanted |= {layer.array or layer: _attribute(body, layer) for layer in body.layers}
        inputs = names_of_inputs(body)
        taken = set(inputs)
        for member, name in wanted.items():
            end = "" if name not in inputs else "_param" if isinstance(member, Own) else "_layer"
            body.members[member] = free(name + end, taken)
    return body.members


def _shortened(own: Own, body: Body) -> str:
    """The name of a parameter; of the only one of a module that is no layer, that module's."""
    home, _, last = own.name.rpartition(".")
    alone = last == "weight" and not any(each is not own and each.name.startswith(f"{home}.") for each in body.own)
    return home if home and alone else own.name


def _attribute(body: Body, layer: Layer) -> str:
    path = layer.array.name if layer.array else layer.path
    name = path.removeprefix(body.call.scope.prefix)
    if name[:1].isdigit():
        kind = layer.body.call.scope.kind.rpartition(".")[2]
        name = f"{re.sub('(?<=[a-z])(?=[A-Z])', '_', kind).lower()}_{name}"
    return identifier(name)


def identifier(path: str) -> str:
    """A path of a module as a name of the language."""
    name = re.sub(r"\W", "_", path, flags=re.ASCII)
    return f"{name}_" if name in reserved() else name


def reserved() -> frozenset[str]:
    """Words of the language and its operators, which hide no layer, but would mislead."""
    return frozenset(REGISTRY) | frozenset(FUNCTIONS) | frozenset(tables().keywords)


def fields_of(config: Any) -> dict[int, str]:
    """Sizes that one field of a configuration alone has, and what their dims are called."""
    values = {} if config is None else dict(getattr(config, "to_dict", lambda: vars(config))())
    found: dict[int, set[str]] = {}
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 1 and name in FIELDS:
            found.setdefault(value, set()).add(FIELDS[name])
    known = {size: names.pop() for size, names in found.items() if len(names) == 1}
    labels = getattr(config, "num_labels", None)
    # Each configuration of transformers has two labels if nothing else is said.
    if isinstance(labels, int) and labels > 2 and labels not in found:
        known[labels] = "labels"
    return known
