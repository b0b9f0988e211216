"""A file's tree -> what is declared in it, item by item; its text -> the lines that can be
folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shardlang.check.files.removed_members import flat
from shardlang.editor.words.scopes import ITEM_ROLES, NameRole
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.tables import tables
from shardlang.syntax.tokens import TokenStream

_COMMENTS = re.compile(r"^[ \t]*#[^\n]*(?:\n[ \t]*#[^\n]*)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """A declaration. span: all of it; place: its name. detail: how it is written, in short."""

    name: str
    role: NameRole
    span: Span
    place: Span
    detail: str = ""
    inner: tuple[OutlineEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class FoldedLines:
    """Lines from 1, both shown as one; comment: they are comments, and no block."""

    first: int
    last: int
    comment: bool = False


def outline(file: ast.File) -> tuple[OutlineEntry, ...]:
    """All that a file declares, in its order."""
    return tuple(entry for item in file.items for entry in _entries(item))


def _entries(node: ast.Node) -> Iterator[OutlineEntry]:
    match node:
        case ast.DimDecl():
            for entry in node.entries:
                yield _entry(entry.name, NameRole.DIM, entry, entry.value.span.text)
        case ast.Model():
            inner = (entry for member in flat(node.members) for entry in _entries(member))
            yield _entry(node.name, NameRole.MODEL, node, _formals(node.formals), inner)
        case ast.Layer():
            yield _entry(node.name, NameRole.LAYER, node, node.value.span.text)
        case ast.Tensor():
            role = NameRole.PARAMETER if node.keyword == "param" else NameRole.STATE
            yield _entry(node.name, role, node, node.type.span.text)
        case ast.Forward():
            inner = (entry for statement in node.body for entry in _entries(statement))
            yield _entry(_word("forward", node), NameRole.FUNCTION, node, _formals(node.formals), inner)
        case ast.Assign():
            yield from (_entry(name, NameRole.VALUE, node) for name in node.names)
        case ast.Strategy():
            meshes = [rule for rule in node.rules if isinstance(rule, ast.Mesh)]
            axes = [axis for mesh in meshes for axis in mesh.axes]
            inner = (_entry(a.name, NameRole.AXIS, a, a.size.span.text if a.size else "auto") for a in axes)
            yield _entry(node.name, NameRole.STRATEGY, node, ", ".join(mesh.span.text for mesh in meshes), inner)
        case ast.Train():
            inner = (entry for setting in node.settings for entry in _entries(setting))
            yield _entry(_word("train", node), NameRole.SETTING, node, "", inner)
        case ast.Setting():
            at = " at " + ", ".join(selector.span.text for selector in node.at) if node.at else ""
            value = node.value.span.text if node.keyword != "freeze" else ""
            yield from (_entry(name, NameRole.SETTING, node, f"{value}{at}") for name in node.names)
        case ast.Hardware():
            inner = (entry for each in (*node.settings, *node.levels) for entry in _entries(each))
            yield _entry(node.name, NameRole(node.keyword), node, "", inner)
        case ast.Function() | ast.Operator() | ast.OwnSource() | ast.OwnSchedule() | ast.OwnOptimizer():
            yield _entry(node.name, ITEM_ROLES[type(node)], node, _formals(node.formals))


def _entry(
    name: ast.Name, role: NameRole, node: ast.Node, detail: str = "", inner: Iterable[OutlineEntry] = ()
) -> OutlineEntry:
    return OutlineEntry(name.text, role, node.span, name.span, " ".join(detail.split()), tuple(inner))


def _word(word: str, node: ast.Node) -> ast.Name:
    """The word that a node without a name begins with."""
    start = node.span.start
    return ast.Name(word, span=Span(node.span.source, start, start + len(word)))


def _formals(formals: Iterable[ast.Formal]) -> str:
    return f"({', '.join(formal.span.text for formal in formals)})"


def folded(source: Source) -> tuple[FoldedLines, ...]:
    """Blocks of several lines, without the line of their closing brace, and runs of comments; a
    text with mistakes has those whose braces fit."""
    found: list[FoldedLines] = []
    open: list[int] = []
    for kind, start, _ in TokenStream(source, tables()):
        line = source.position(start)[0]
        if kind == "LBRACE":
            open.append(line)
        elif kind == "RBRACE" and open:
            first = open.pop()
            found += [FoldedLines(first, line - 1)] * (line - 1 > first)
    for run in _COMMENTS.finditer(source.text):
        found.append(FoldedLines(source.position(run.start())[0], source.position(run.end())[0], True))
    return tuple(sorted(found, key=lambda fold: (fold.first, -fold.last)))
