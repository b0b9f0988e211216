"""The names that a user gives to dims and models, in a file -> the names of a program."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from shardlang.errors import RunError
from shardlang.importing.bodies.models import Model
from shardlang.importing.text.names import Namer, names_of_inputs, names_of_members, reserved

_LINE = re.compile(r"(model|dim) +([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))? *= *([A-Za-z_]\w*)", re.ASCII)


@dataclass(frozen=True)
class Given:
    """A line: what has the name `old` is `new`; of a dim in one `model`, or in all that have it."""

    kind: str
    old: str
    new: str
    model: str = ""


def parse(text: str, file: str) -> list[Given]:
    """The lines of a file. RunError SH600."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.partition("#")[0].strip()
        if not plain:
            continue
        match = _LINE.fullmatch(plain)
        if match is None or (match[1] == "model" and match[3]):
            help = "`model OLD = NEW`, `dim OLD = NEW` or `dim MODEL.OLD = NEW`"
            raise RunError("SH600", f"line {number} of `{file}` gives no name: `{plain}`", help=help)
        kind, first, second, new = match.groups()
        if new in reserved():
            raise RunError("SH600", f"line {number} of `{file}`: `{new}` is a word of the language")
        found.append(Given(kind, second or first, new, first if second else ""))
    return found


def rename(given: Iterable[Given], namer: Namer) -> None:
    """Gives the names, in place. RunError SH600 where nothing has the old one, or two would have
    the new one."""
    models = [model for model in dict.fromkeys(namer.made.values()) if model.library is None]
    for each in given:
        if each.kind == "model":
            _model(each, models)
        else:
            _dim(each, models, namer)


def _model(each: Given, models: list[Model]) -> None:
    found = [model for model in models if model.name == each.old]
    if not found:
        raise _missing(f"there is no model `{each.old}`", (model.name for model in models))
    if any(model.name == each.new for model in models):
        raise RunError("SH600", f"two models would be `{each.new}`")
    for model in found:
        model.name = each.new


def _dim(each: Given, models: list[Model], namer: Namer) -> None:
    there = [model for model in models if not each.model or model.name == each.model]
    if not there:
        raise _missing(f"there is no model `{each.model}`", (model.name for model in models))
    places = [(model, atom) for model in there for atom, name in namer.names[model].items() if name == each.old]
    if not places:
        known = (name for model in there for name in namer.names[model].values())
        raise _missing(f"there is no dim `{each.old}`", known)
    for model, atom in places:
        body = model.body
        if each.new in {*namer.names[model].values(), *names_of_members(body), *names_of_inputs(body)}:
            raise RunError("SH600", f"`{model.name}` has a `{each.new}` already, so `{each.old}` cannot be that")
        namer.names[model][atom] = each.new


def _missing(fact: str, names: Iterable[str]) -> RunError:
    known = sorted({name for name in names if name.isidentifier()})
    return RunError("SH600", f"{fact} to name", help=f"there are {', '.join(f'`{name}`' for name in known[:12])}")
