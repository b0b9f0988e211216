"""Finds the places of a tree without a space between tokens: selectors, layouts, signs, calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields
from typing import Any

from shardlang.records import dataclass
from shardlang.source import Span
from shardlang.syntax import ast


@dataclass
class Tight:
    """`glued`: tokens with no space before; `sticky`: with none after; `called`: call brackets."""

    glued: set[int] = field(default_factory=set)
    sticky: set[int] = field(default_factory=set)
    called: set[int] = field(default_factory=set)

    def joined(self, before: int, after: int) -> bool:
        return before in self.sticky or after in self.glued


def tight_places(file: ast.File) -> Tight:
    """All such places of a file."""
    tight = Tight()
    for node in _nodes(file.items):
        _note(node, file.source.text, tight)
    return tight


def _nodes(root: Any) -> Iterator[Any]:
    """All nodes below, without recursion."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif hasattr(node, "__dataclass_fields__") and not isinstance(node, Span):
            yield node
            waiting.extend(getattr(node, f.name) for f in fields(node))


def _note(node: Any, text: str, tight: Tight) -> None:
    match node:
        case ast.Segment():
            tight.glued.update(range(node.span.start + 1, node.span.end))
            tight.called.update(range(node.span.start + 1, node.span.end))
        case ast.Unary(op="-"):
            tight.sticky.add(text.index("-", node.span.start))
        case ast.DimFactor():
            tight.glued.update(range(node.dim.span.end, node.span.end))
            tight.sticky.update(range(node.dim.span.end, node.span.end))
            _inside_groups(text, node.dim.span.end, node.span.end, tight)
        case ast.TensorType():
            _type(node, text, tight)
        case ast.Call():
            tight.called.add(text.index("(", node.callee.span.end))
        case ast.Index():
            tight.called.add(text.index("[", node.value.span.end))
        case ast.Layer(count=count) if count is not None:
            tight.called.add(text.index("[", node.name.span.end))
        case ast.Model() | ast.Function():
            tight.called.add(text.find("(", node.name.span.end))
        case ast.Forward():
            tight.called.add(text.index("(", node.span.start))
        case _:
            pass


def _type(node: ast.TensorType, text: str, tight: Tight) -> None:
    """The bracket touches the element type; `+` and `^` touch their axes."""
    bracket = text.index("[", node.span.start)
    if node.dtype is not None:
        tight.called.add(bracket)
    if node.pending or node.replicated:
        after = text.rindex("]", node.span.start, node.span.end)
        tight.sticky.update(i for i in range(after, node.span.end) if text[i] in "+^")


def _inside_groups(text: str, start: int, end: int, tight: Tight) -> None:
    """In `@(dp, cp)` a space follows the comma."""
    comma = text.find(",", start, end)
    if comma < 0:
        return
    opening = text.index("(", start)
    for places in (tight.glued, tight.sticky):
        places.difference_update(range(opening + 1, end))
    tight.called.add(opening)
