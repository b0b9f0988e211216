"""A table of names and what of a path stands there -> how the path may go on: a selector to layers,
parameters and values, or a dim of a layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from shardlang.editor.words.names import NameTable
from shardlang.editor.words.scopes import NameDecl, NameRole, members, model_of
from shardlang.editor.words.signatures import Offer, of_decl, plain, resolved
from shardlang.editor.words.uses import TRAIN, deep, named
from shardlang.syntax import ast
from shardlang.syntax.words import RULES

# Layers first, which most rules are of.
PATHS = (NameRole.LAYER, NameRole.PARAMETER, NameRole.STATE, NameRole.VALUE)


def selectors(table: NameTable, before: Sequence[str]) -> Iterator[Offer]:
    """The next part of a selector, an array with all its layers; at its start also paths of two
    parts. before: the texts of the statement so far."""
    path = _parts(before)
    root = members(table.root) if table.root is not None else {}
    *_, (_, below) = ((), [root]), *named(path, root, table.values.below)
    for names in below:
        yield from _each(names)
    if path[-1:] == ["**"]:
        yield from _each({decl.text: decl for decl in deep(below)})
    if path == [TRAIN] and "loss" in table.values.below:
        yield of_decl("loss", table.values.below["loss"])
    if path:
        return
    for name, decl in root.items():
        model = model_of(decl) if decl.role is NameRole.LAYER else None
        yield from _each(members(model) if model is not None else {}, f"{name}{_index(decl)}.")
    yield plain(TRAIN, "word", RULES["at"].doc)


def _parts(before: Sequence[str]) -> list[str]:
    """The parts before the last `.` of the selector that a statement ends in."""
    start = max((at for at, text in enumerate(before) if text in ("at", ",", ":")), default=-1)
    return re.sub(r"\[[^\]]*\]", "", "".join(before[start + 1 :])).split(".")[:-1]


def _each(names: Mapping[str, NameDecl], lead: str = "") -> Iterator[Offer]:
    found = [(name, decl) for name, decl in names.items() if decl.role in PATHS]
    for name, decl in sorted(found, key=lambda each: PATHS.index(each[1].role)):
        yield of_decl(f"{lead}{name}{_index(decl)}", decl)


def _index(decl: NameDecl) -> str:
    """All of an array of layers."""
    return "[*]" if isinstance(decl.node, ast.Layer) and decl.node.count is not None else ""


def dim_paths(names: Mapping[str, NameDecl], owner: Sequence[str] = ()) -> Iterator[Offer]:
    """Dims, and those of layers by their paths. owner: the layers of the path so far."""
    if owner:
        model = model_of(resolved(owner, names))
        names = members(model) if model is not None else {}
    yield from (of_decl(name, decl) for name, decl in names.items() if decl.role is NameRole.DIM)
    for name, decl in names.items():
        model = model_of(decl) if decl.role is NameRole.LAYER else None
        inner = members(model).items() if model is not None else ()
        yield from (of_decl(f"{name}.{dim}", each) for dim, each in inner if each.role is NameRole.DIM)
