"""Names of models of one class that compute different things: by where they stand, as the stack of
a decoder, or by what they have, as a block with a downsampling."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from shardlang.importing.bodies.body import Body, free
from shardlang.importing.bodies.library import LIBRARY
from shardlang.importing.bodies.models import Model

# So many words tell a model from others, at most.
_MOST = 2
# What the first of a list is called.
_FIRST = "First"
# Words that say nothing of a module.
_GENERAL = {"model", "module", "layer", "layers", "block", "blocks", "weight"}


def distinct_names(made: Mapping[Body, Model]) -> None:
    """Gives each model a name of its own, in place."""
    models = list(dict.fromkeys(made.values()))
    taken = set(LIBRARY) & {model.library.name for model in models if model.library}
    classes: dict[str, list[Model]] = {}
    for model in models:
        if model.library is None and not model.is_bare:
            classes.setdefault(model.name, []).append(model)
    for name, group in classes.items():
        words = _own_words([_words(model, name) for model in group])
        for at, model in enumerate(group):
            model.name = free(name + "".join(_telling(words, at)), taken)
            if model.bare is not None:
                model.bare.name = model.name


def _words(model: Model, name: str) -> list[str]:
    """Words for a model: of the paths that lead to all of its layers, of what it has, whether it is
    the first of a list, then of what its layers have. Those of its class say nothing, nor do
    numbers."""
    paths = [body.call.scope.path.split(".") for body in model.bodies]
    common = [part for part in paths[0] if all(part in path for path in paths)]
    first = [_FIRST] * all(path[-1] == "0" for path in paths)
    found = (_said(part, name) for part in [*common, *_members(model.body), *first, *_inside(model.body)])
    return list(dict.fromkeys(word for word in found if word))


def _own_words(words: Sequence[Sequence[str]]) -> list[list[str]]:
    """The words of each model without those that all have; one is called the first in place of what
    its layers have, not of nothing."""
    shared = set(words[0]).intersection(*words)
    found = [[word for word in each if word not in shared] for each in words]
    return [each[:-1] if each[-1:] == [_FIRST] else each for each in found]


def _members(body: Body) -> list[str]:
    """The attributes of parameters and layers."""
    own = [each.name.split(".")[0] for each in body.own]
    parts = [part for layer in body.layers for part in layer.path.removeprefix(body.call.scope.prefix).split(".")]
    return [*own, *(part for part in parts if not part.isdigit())]


def _inside(body: Body) -> list[str]:
    """The attributes of parameters and layers, those of the inner layers too."""
    return [*_members(body), *(part for layer in body.layers for part in _inside(layer.body))]


def _said(part: str, name: str) -> str:
    """A part of a path as the end of a name, without the words of that."""
    if part[-1:].isdigit():
        return ""
    there = {word.lower() for word in _parts(name)} | _GENERAL
    return "".join(word[:1].upper() + word[1:] for word in _parts(part) if word.lower() not in there)


def _parts(name: str) -> list[str]:
    return re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+", name)


def _telling(words: Sequence[Sequence[str]], at: int) -> tuple[str, ...]:
    """The fewest words that a model has, and no other but those that have all of its words and
    more."""
    others = [set(each) for number, each in enumerate(words) if number != at]
    mine = set(words[at])
    for count in range(1, _MOST + 1) if others else ():
        for chosen in itertools.combinations(words[at], count):
            if all(mine < other for other in others if set(chosen) <= other):
                return chosen
    return ()
