"""The files of a program that is not known as a whole -> the names that strategies may select by.

Those of all models count, whichever is trained, and whether they are called or not: what none of
them declares is unknown for sure."""

from __future__ import annotations

from shardlang.check.declared import called
from shardlang.check.files.imports import Library
from shardlang.check.files.removed_members import flat
from shardlang.check.lost_text import lost_texts
from shardlang.check.program import DeclaredNames
from shardlang.check.values import UNKNOWN, FileScope, ModelDecl
from shardlang.syntax import ast


def declared_names(file: ast.File, library: Library) -> DeclaredNames:
    """The names of a program, with all that it imports."""
    scopes = list(library.scopes.values())
    models = [v.node for scope in scopes for v in scope.names.values() if isinstance(v, ModelDecl)]
    members = [member for model in models for member in flat(model.members)]
    settings = (s for item in file.items if isinstance(item, ast.Train) for s in item.settings)
    bodies = (s for m in members if isinstance(m, ast.Forward) for s in m.body if isinstance(s, ast.Assign))
    values = {name.text for s in (*bodies, *settings) for name in s.names}
    values |= {member.name.text for member in members if isinstance(member, ast.Layer | ast.Tensor)}
    dims = (e.name.text for m in (*members, *file.items) if isinstance(m, ast.DimDecl) for e in m.entries)
    formals = (f.name.text for model in models for f in model.formals if isinstance(f.kind, ast.Name))
    lost = [each.words for each in lost_texts(library.files) if not isinstance(each.item, ast.Strategy)]
    unknown = bool(lost) or any(map(_open, (scope for scope in scopes if not scope.source.library)))
    words = frozenset[str]().union(*lost)
    found = words.union(values, ("train", "return")) if models else frozenset[str]()
    return DeclaredNames(found, words.union(dims, formals), unknown)


def _open(scope: FileScope) -> bool:
    """Whether a file imports, or a model of it has, what nobody knows."""
    known = list(scope.names.values())
    models = (value.node for value in known if isinstance(value, ModelDecl) and value.file is scope)
    return UNKNOWN in known or any(_unknown(member, scope) for model in models for member in flat(model.members))


def _unknown(member: ast.Member, scope: FileScope) -> bool:
    return isinstance(member, ast.Layer) and not isinstance(scope.find(called(member.value)), ModelDecl)
