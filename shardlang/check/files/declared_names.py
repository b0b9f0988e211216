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


def declared_names(file: ast.File, library: Library, root: str | None) -> DeclaredNames:
    """The names of a program, with all that it imports. root: the model that it trains."""
    scopes, main = list(library.scopes.values()), library.scopes[file.source.name]
    models = [v.node for scope in scopes for v in scope.names.values() if isinstance(v, ModelDecl)]
    members = [member for model in models for member in flat(model.members)]
    settings = (s for item in file.items if isinstance(item, ast.Train) for s in item.settings)
    bodies = (s for m in members if isinstance(m, ast.Forward) for s in m.body if isinstance(s, ast.Assign))
    values = {name.text for s in bodies for name in s.names} | {name.text for s in settings for name in s.names}
    values |= {member.name.text for member in members if isinstance(member, ast.Layer | ast.Tensor)}
    dims = (e.name.text for m in (*members, *file.items) if isinstance(m, ast.DimDecl) for e in m.entries)
    formals = (f.name.text for model in models for f in model.formals if isinstance(f.kind, ast.Name))
    lost = [each for each in lost_texts(library.files) if not isinstance(each.item, ast.Strategy)]
    # With the names that are told to be unknown, once.
    words = frozenset(name for _, name in library.context.unknown).union(*(each.words for each in lost))
    gone = _unknown_imports(main) or any(each.item is None for each in lost)
    rooted = isinstance(main.find(root or ""), ModelDecl) or not gone
    whole = not lost and not any(map(_open, (scope for scope in scopes if not scope.source.library)))
    found = words.union(values, ("train", "return")) if models else frozenset[str]()
    return DeclaredNames(found, words.union(dims, formals), (None if whole else 1) if rooted else 0)


def _open(scope: FileScope) -> bool:
    """Whether a file imports, or a model of it has, what nobody knows."""
    models = (value.node for value in scope.names.values() if isinstance(value, ModelDecl) and value.file is scope)
    return _unknown_imports(scope) or any(_unknown(member, scope) for model in models for member in flat(model.members))


def _unknown_imports(scope: FileScope) -> bool:
    return any(value is UNKNOWN for value in scope.names.values())


def _unknown(member: ast.Member, scope: FileScope) -> bool:
    return isinstance(member, ast.Layer) and not isinstance(scope.find(called(member.value)), ModelDecl)
