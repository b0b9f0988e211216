"""A table of names and a place in its text -> where the name is declared, where it stands, what a
selector covers, and the edits that give it another name, or a sentence why there are none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardlang.check.files.removed_members import flat
from shardlang.check.model.forward import UNUSED
from shardlang.check.model.operators import is_operator
from shardlang.check.train.data_sources import SOURCES
from shardlang.check.train.late import FIGURES
from shardlang.check.train.settings import SETTINGS
from shardlang.editor.words.names import NameTable
from shardlang.editor.words.scopes import NameRole, members, model_of
from shardlang.editor.words.uses import NameUse, deep
from shardlang.facts.dtypes import DTYPES
from shardlang.paths.patterns import matcher
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.syntax.tables import tables

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COVERED = (NameRole.LAYER, NameRole.PARAMETER, NameRole.STATE)
_BY_PATH = (*_COVERED, NameRole.VALUE)
# What a name may be that nothing declares, without that a new declaration could take its place.
_OF_LANGUAGE = (NameRole.ARGUMENT, NameRole.SETTING, NameRole.WORD, NameRole.TYPE, NameRole.SELECTOR)
# Names that stand beside all others: one of the same role alone is in the way.
_APART = (NameRole.STRATEGY, NameRole.METRIC, NameRole.LEVEL)
Refusal = str


def definition(table: NameTable, offset: int) -> Span | None:
    """Where the name at an offset is declared, in this file or another; of a part of a selector
    that names several, the first."""
    use = table.at(offset)
    if use is None or use.declared is not None:
        return use.declared if use is not None else None
    steps = (step for selector in table.selectors for step in selector.steps)
    return next((found[0].span for place, found in steps if place == use.span and found), None)


def layer_at(table: NameTable, offset: int) -> tuple[str, str] | None:
    """The layer whose declaration is around an offset: its model, and its name."""
    for model in (item for item in table.file.tree.items if isinstance(item, ast.Model)):
        for member in flat(model.members):
            if isinstance(member, ast.Layer) and member.span.start <= offset <= member.span.end:
                return model.name.text, member.name.text
    return None


def references(table: NameTable, offset: int, others: Sequence[NameTable] = ()) -> tuple[Span, ...]:
    """All places of the name at an offset, its declaration too, in this file and in others."""
    use = table.at(offset)
    if use is None:
        return ()
    tables = {each.source.name: each for each in (table, *others)}
    found = [each.span for other in tables.values() for each in other.uses if _same(each, use)]
    elsewhere = use.declared is not None and use.declared.source.name not in tables
    return (*found, use.declared) if use.declared is not None and elsewhere else tuple(found)


def _same(one: NameUse, other: NameUse) -> bool:
    if one.span.text != other.span.text:
        return False
    if one.declared is None or other.declared is None:
        return one.declared is other.declared and one.role is other.role
    # A file that was read twice has two sources of one name.
    left, right = one.declared, other.declared
    return left.start == right.start and left.source.name == right.source.name


def covered(table: NameTable, offset: int) -> tuple[Span, ...]:
    """The layers, parameters and states of this file that the selector at an offset covers, and
    values that it names."""
    at = next((s for s in table.selectors if s.span.start <= offset <= s.span.end), None)
    if at is None:
        return ()
    named = at.steps[-1][1]
    below = deep([members(model) for decl in named if (model := model_of(decl)) is not None])
    found = [decl for decl in named if decl.role in _BY_PATH] + [decl for decl in below if decl.role in _COVERED]
    here = {decl.span.start: decl.span for decl in found if decl.span.source is table.source}
    return tuple(here[start] for start in sorted(here))


# --- other names ---------------------------------------------------------------


def rename(table: NameTable, offset: int, new: str, others: Sequence[NameTable] = ()) -> tuple[Span, ...] | Refusal:
    """The places where `new` is to be written, or why not, in a sentence. others: the tables of the
    files that import this one, and of that which declares the name."""
    use = table.at(offset)
    if use is None:
        return "There is no name here."
    refused = fixed(use, table) or _no_name(new, use.role)
    if refused or new == use.span.text:
        return refused or ()
    places = references(table, offset, others)
    files = {each.source.name: each for each in (table, *others)}
    if any(span.source.name not in files for span in places):
        return f"`{use.span.text}` is declared in another file: rename it there."
    taken = next((why for span in places if (why := _taken(span, new, use.role, files[span.source.name]))), "")
    taken = taken or next((why for each in files.values() if (why := _selected(use, new, each))), "")
    return taken or places


def _no_name(new: str, role: NameRole) -> Refusal:
    if not _NAME.fullmatch(new):
        return f"`{new}` is no name: a name is made of letters, digits and `_`, and begins with no digit."
    of_language = new in tables().keywords or new in DTYPES or new in FIGURES or is_operator(new)
    if of_language or new == UNUSED or (new in SETTINGS and role in (NameRole.VALUE, NameRole.FIELD)):
        return f"`{new}` is a word of the language: take another name."
    return ""


def fixed(use: NameUse, table: NameTable) -> Refusal:
    """Why a name stays as it is; "" where it can be changed."""
    name, at = use.span.text, use.declared
    if use.role is NameRole.LIBRARY:
        return f"`{name}` is the name of a file or a library: it is changed where the file lies."
    if use.role is NameRole.SELECTOR:
        return f"`{name}` is a pattern: rename what it names."
    if at is None:
        why = "is declared nowhere" if use.missing else "is of the language"
        return f"`{name}` {why}, so it cannot be renamed."
    if at.source.library:
        return f"`{name}` is of the library `{at.source.name}`, which stays as it is."
    if use.role is NameRole.SETTING:
        return f"`{name}` is a setting of `train`, and keeps its name."
    if use.role is NameRole.FIELD and not _declares(at, table):
        return f"`{name}` is a field that `{at.text}` gives under this name."
    return _known_outside(name, at, table)


def _known_outside(name: str, at: Span, table: NameTable) -> Refusal:
    """Why a name stays that something outside of the text knows: Python, a lock or a data file."""
    files = [table.file, *table.file.uses.values()]
    tree = next((file.tree for file in files if file.source.name == at.source.name), table.file.tree)
    item = next((item for item in tree.items if item.span.start <= at.start < item.span.end), None)
    if isinstance(item, ast.Operator | ast.Own) and item.name.span.start != at.start:
        return f"`{name}` is known to the Python function of `{item.name.text}`, so it keeps its name."
    if isinstance(item, ast.Operator | ast.OwnOptimizer):
        return f"`{name}` is verified under this name: rename it by hand, and run `shardc verify` again."
    for call in (node for node in ast.nodes_of((item,) if item else ()) if isinstance(node, ast.Call)):
        source = call.callee.span.text
        if any(each.name.span.start == at.start for each in call.fields) and _reads_file(source):
            return f"`{name}` is the name that `{source}` looks for in its file, so it stays."
    return ""


def _declares(at: Span, table: NameTable) -> bool:
    """Whether a declaration is one of its own name, and not the call of a source of the
    language."""
    there = table.at(at.start)
    return at.source is not table.source or (there is not None and there.declares)


def _reads_file(source: str) -> bool:
    return source not in SOURCES or any(param.name == "path" for param in SOURCES[source].params)


def _taken(span: Span, new: str, role: NameRole, table: NameTable) -> Refusal:
    """Whether `new` means something already where a name is to become it."""
    alike = [use for use in table.uses if use.span.text == new]
    if role in _APART:
        found = [use.span for use in alike if use.role is role]
        return _already(new, role, found[0]) if found else ""
    there = table.scope(span.start).visible().get(new) or table.file.around(span).get(new)
    if there is not None:
        return _already(new, there.role, there.span)
    free = [use.span for use in alike if use.declared is None and use.role not in _OF_LANGUAGE]
    return f"`{new}` stands at {free[0].place()}, and would then mean this." if free else ""


def _already(name: str, role: NameRole, at: Span) -> Refusal:
    return f"`{name}` is {'an' if role.value[0] in 'aeiou' else 'a'} {role.value} already ({at.place()})."


def _selected(use: NameUse, new: str, table: NameTable) -> Refusal:
    """Whether a selector would name other things than before."""
    old, at = use.span.text, use.declared
    for selector in table.selectors if use.role in _BY_PATH else ():
        for place, found in selector.steps:
            pattern, here = place.text, any(decl.span == at for decl in found)
            if pattern.strip("*") and "*" in pattern:
                fits = matcher(pattern)
                changed = bool(fits(old)) != bool(fits(new))
            else:
                changed = pattern in (old, new) and len(found) > here
            if changed:
                return f"The selector `{selector.span.text}` would name other things ({selector.span.place()})."
    return ""
