"""Members that a static `if` took out: declared for selectors and for messages, never computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlang.check.context import Frame
from shardlang.check.declared import called
from shardlang.check.values import Instance, ModelDecl
from shardlang.syntax import ast

# Removed models may contain each other; deeper than any written one nothing is declared.
_DEPTH = 16


def declare_removed(members: Sequence[ast.Member], instance: Instance, frame: Frame) -> None:
    """Remember the names of removed members, and declare their paths."""
    for member in flat(members):
        if isinstance(member, (ast.Layer, ast.Tensor)):
            instance.missing[member.name.text] = member.name.span
        elif isinstance(member, ast.DimDecl):
            instance.missing.update((e.name.text, e.name.span) for e in member.entries)
    _declare(members, instance.path, frame, _DEPTH)


def flat(members: Sequence[ast.Member]) -> Iterator[ast.Member]:
    """All members, those under conditions too."""
    for member in members:
        if isinstance(member, ast.If):
            yield from flat((*member.then, *member.otherwise))
        else:
            yield member


def _declare(members: Sequence[ast.Member], prefix: str, frame: Frame, depth: int) -> None:
    declare = frame.context.build.declare
    for member in flat(members):
        match member:
            case ast.Tensor():
                declare(_below(prefix, member.name.text))
            case ast.Layer():
                _declare_layer(member, _below(prefix, member.name.text), frame, depth)
            case ast.Forward():
                for statement in member.body:
                    for name in statement.names if isinstance(statement, ast.Assign) else ():
                        declare(_below(prefix, name.text))


def _declare_layer(member: ast.Layer, path: str, frame: Frame, depth: int) -> None:
    declare = frame.context.build.declare
    declare(path)
    prefix = path if member.count is None else f"{path}[0]"
    declare(prefix)
    model = frame.find(called(member.value))
    if isinstance(model, ModelDecl) and depth > 0:
        _declare(model.node.members, prefix, Frame(frame.context, model.file), depth - 1)


def _below(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
