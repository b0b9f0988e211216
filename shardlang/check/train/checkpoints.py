"""`checkpoint = every(100, keep = 4, to = "checkpoints")` -> how often, how many and where, as frozen values; `log =
every(100)` likewise.

Writing and reading checkpoints, and what is logged, is the runtime's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlang.check.constants import whole
from shardlang.check.context import Frame
from shardlang.check.model.arguments import argument_twice, unknown_argument
from shardlang.check.values import UNKNOWN, describe
from shardlang.syntax import ast

_HELP = 'write `checkpoint = every(100, keep = 4, to = "checkpoints")`'
_ARGUMENTS = {"keep", "to"}


def read_checkpoint(node: ast.Expr, frame: Frame) -> tuple[str, Mapping[str, Any]] | None:
    """("every", {"steps": 100, "keep": 4, "to": "checkpoints"}); None after a report. By default all are kept."""
    sink = frame.context.sink
    called = isinstance(node, ast.Call) and isinstance(node.callee, ast.Name) and node.callee.text == "every"
    if not called or not isinstance(node, ast.Call) or len(node.args) != 1:
        sink.report("SH237", "`checkpoint` is how often to write one", node.span, "here", help=_HELP)
        return None
    found: dict[str, Any] = {
        "steps": _count(node.args[0], "the number of steps", frame),
        "keep": 0,
        "to": "checkpoints",
    }
    seen: dict[str, ast.Keyword] = {}
    for keyword in node.keywords:
        name = keyword.name.text
        if name in seen:
            argument_twice("every", keyword.name, seen[name].span, frame)
            return None
        if name not in _ARGUMENTS:
            unknown_argument("every", keyword.name, _ARGUMENTS, frame)
            return None
        seen[name] = keyword
        found[name] = _count(keyword.value, "`keep`", frame) if name == "keep" else _folder(keyword.value, frame)
    return None if UNKNOWN in found.values() else ("every", found)


def read_log(node: ast.Expr, frame: Frame) -> Mapping[str, Any] | None:
    """{"steps": 100}; None after a report."""
    called = isinstance(node, ast.Call) and isinstance(node.callee, ast.Name) and node.callee.text == "every"
    if not called or not isinstance(node, ast.Call) or len(node.args) != 1:
        fact = "`log` is how often each rank writes to its log"
        frame.context.sink.report("SH237", fact, node.span, "here", help="write `log = every(100)`")
        return None
    if node.keywords:
        unknown_argument("every", node.keywords[0].name, set(), frame)
        return None
    steps = _count(node.args[0], "the number of steps", frame)
    return None if steps is UNKNOWN else {"steps": steps}


def _count(node: ast.Expr, what: str, frame: Frame) -> Any:
    value = whole(frame.evaluate(node), node.span, frame.context.sink, what)
    if value is UNKNOWN or value >= 1:
        return value
    frame.context.sink.report("SH213", f"{what} must be at least 1, and this is {value}", node.span, str(value))
    return UNKNOWN


def _folder(node: ast.Expr, frame: Frame) -> Any:
    value = frame.evaluate(node)
    if value is UNKNOWN or (isinstance(value, str) and value):
        return value
    fact = f"`to` must be the name of a folder, and this is {describe(value)}"
    frame.context.sink.report("SH210", fact, node.span, describe(value), help='write `to = "checkpoints"`')
    return UNKNOWN
