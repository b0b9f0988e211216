"""The dims of a result, as in `einsum(x, w -> [..., out])`, where nothing reads them -> a report.

Goes through the tree: a call is read in many places, as a layer, a setting or a source of data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import shardlang.ops.all_families  # noqa: F401  (fills the registry)
from shardlang.diagnostics.diagnostic import Sink
from shardlang.ops.declaration import REGISTRY, Arrow
from shardlang.syntax import ast


def require_read(file: ast.File, sink: Sink) -> None:
    """Reports each `-> [...]` of a call of what is no operator that takes it, by its name."""
    for call in _calls(file.items) if not file.source.library else ():
        callee = call.callee.text if isinstance(call.callee, ast.Name) else ""
        if callee not in REGISTRY or REGISTRY[callee].arrow is Arrow.NONE:
            report_unread(call, sink)


def report_unread(call: ast.Call, sink: Sink) -> None:
    """Reports the `-> [...]` of a call, if there is one."""
    if call.arrow is None:
        return
    name, dims = call.callee.span.text, call.arrow.span.text
    renamed = [f"`relabel({name}(...) -> {dims})` gives its dims other names"] if name in REGISTRY else []
    sink.report(
        "SH220", f"`{name}` does not take the dims of its result", call.arrow.span, "nothing reads this",
        help=[f"leave out `-> {dims}`", *renamed],
    )  # fmt: skip


def _calls(items: tuple[ast.Node, ...]) -> Iterator[ast.Call]:
    """The calls with an arrow in nodes, and below them, in the order of the text."""
    waiting: list[Any] = [items]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting += node[::-1]
            continue
        if isinstance(node, ast.Call) and node.arrow is not None:
            yield node
        for name in _parts(node.__class__):
            waiting.append(getattr(node, name))


@cache
def _parts(kind: type) -> list[str]:
    """The fields of a class that may hold nodes, the last first; none of what is no node."""
    fields = kind.__dataclass_fields__.values() if issubclass(kind, ast.Node) else ()
    return [field.name for field in fields if field.name != "span" and field.type != "str"][::-1]
