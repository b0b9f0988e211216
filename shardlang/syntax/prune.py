"""A tree that holds mistakes of syntax, such as a unit that does not exist -> the tree without the
statements that hold them: nothing can be said of their values.

A statement that no rule allows is in no tree: it is recover.py's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.syntax.expressions import Node

# The fields of nodes that hold statements.
_STATEMENTS = ("members", "then", "otherwise", "body", "settings", "rules", "facts", "levels")


def pruned(items: tuple[Any, ...], places: Sequence[Span]) -> tuple[tuple[Any, ...], list[Span]]:
    """The statements without those that hold one of the places, or with less in them; the text of
    what is taken out."""
    kept, lost = list[Any](), list[Span]()
    if not places:
        return items, lost
    for item in items:
        mine = [place for place in places if item.span.start <= place.start < item.span.end]
        inner = {f.name: pruned(getattr(item, f.name), mine) for f in fields(item) if _holds(f.name, item)}
        gone = [span for _, spans in inner.values() for span in spans]
        if all(any(span.start <= place.start < span.end for span in gone) for place in mine):
            kept.append(replace(item, **{name: left for name, (left, _) in inner.items()}) if gone else item)
            lost += gone
        else:
            lost.append(item.span)
    return tuple(kept), lost


def _holds(field: str, item: Node) -> bool:
    return field in _STATEMENTS or (field == "entries" and isinstance(item, ast.DimDecl))
