"""The dims of the whole that its class calls something in `__init__`: they have that name, and one
that is there so many times another is written so (`2 * width`)."""

from __future__ import annotations

from torch import nn

from shardlang.importing.authors.arguments import Times, arguments
from shardlang.importing.bodies.body import Body
from shardlang.importing.bodies.dims import Atom, flat
from shardlang.importing.bodies.library import known
from shardlang.importing.bodies.models import Model
from shardlang.importing.text.names import AUTHOR, FIELDS, reserved

# The usual names of the dims of inputs, of images too.
_INPUTS, _IMAGES = ("batch", "seq"), ("batch", "height", "width")
# The arguments of torch's layers that are sizes, in the order of the dims of the library's.
_SIZES = {
    "Linear": ("in_features", "out_features"), "Embedding": ("num_embeddings", "embedding_dim"),
    "LayerNorm": ("normalized_shape",), "RMSNorm": ("normalized_shape",), "BatchNorm2d": ("num_features",),
    "LSTM": ("input_size", "hidden_size"), "GRU": ("input_size", "hidden_size"),
    **dict.fromkeys(("Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"), ("in_channels", "out_channels")),
}  # fmt: skip

Found = dict[Times, list[Atom]]


def authored(body: Body, whole: nn.Module) -> Found:
    """The dims of a body by what its class calls them: those whose sizes agree."""
    module = whole.get_submodule(body.call.scope.path)
    kind = known(body)
    if kind is not None and kind.name in _SIZES:
        both = zip(_SIZES[kind.name], body.formals(), strict=False)
        return {Times(name): [atom] for name, atom in both if type(module).__name__ == kind.name}
    given, found = arguments(module), Found()
    for layer in body.layers:
        names = given.get(layer.path.removeprefix(body.call.scope.prefix), {})
        inner = authored(layer.body, whole) if names else Found()
        for name, times in names.items():
            for atom in inner.get(Times(name), []):
                term = flat(layer.terms.get(atom, ()))
                if len(term) == 1:
                    found.setdefault(times, []).append(term[0])
    return {times: atoms for times, atoms in found.items() if len({atom.size for atom in atoms}) == 1}


def hint_names(body: Body, found: Found) -> None:
    """Gives the dims of the whole the names of arguments, but for those that inputs have."""
    image = any(len(value.dims) > 3 for value in body.inputs)
    for times, atoms in found.items():
        name = FIELDS.get(times.name, times.name)
        plain = name.isascii() and name not in reserved() and name not in (_IMAGES if image else _INPUTS)
        for atom in atoms if plain and times.times == 1 else ():
            atom.hint(name, AUTHOR)


def find_multiples(model: Model, found: Found) -> None:
    """Finds the dims of the whole, once some of them are one, that are so many times another."""
    said: dict[Atom, set[Times]] = {}
    for times, atoms in found.items():
        for atom in (model.dims[each] for each in atoms if each in model.dims):
            said.setdefault(atom, set()).add(times)
    for atom, names in said.items():
        (times, *others) = names
        bases = {model.dims[each] for each in found.get(Times(times.name), []) if each in model.dims}
        if times.times < 2 or others or len(bases) != 1:
            continue
        (base,) = bases
        if atom.size == times.times * base.size:
            atom.declared, atom.sum = True, (base,) * times.times
