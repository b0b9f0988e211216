"""`checkpoint = every(100, keep = 4, to = "checkpoints")` -> how often, how many and where, as
frozen values; `log = every(100)` likewise.

Writing and reading checkpoints, and what is logged, is the runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlang.check.constants import whole
from shardlang.check.context import Frame
from shardlang.check.declared import called
from shardlang.check.model.arguments import Argument, by_name
from shardlang.check.values import UNKNOWN, unfit
from shardlang.syntax import ast


def read_checkpoint(node: ast.Expr, frame: Frame) -> tuple[str, Mapping[str, Any]] | None:
    """("every", {"steps": 100, "keep": 4, "to": "checkpoints"}); None after a report."""
    help = 'write `checkpoint = every(100, keep = 4, to = "checkpoints")`'
    found = _every(node, {"keep", "to"}, "`checkpoint` is how often to write one", help, frame)
    return None if found is None else ("every", {"steps": 0, "keep": 0, "to": "checkpoints", **found})


def read_log(node: ast.Expr, frame: Frame) -> Mapping[str, Any] | None:
    """{"steps": 100}; None after a report."""
    return _every(node, set(), "`log` is how often each rank writes to its log", "write `log = every(100)`", frame)


def _every(node: ast.Expr, known: set[str], fact: str, help: str, frame: Frame) -> dict[str, Any] | None:
    """The arguments of `every`, with "steps" for that without a name; None after a report."""
    if not isinstance(node, ast.Call) or called(node) != "every" or len(node.args) != 1:
        frame.wrong("SH237", fact, node.span, "here", help=help)
        return None
    given: dict[str, Argument] = {}
    found = {"steps": _count(Argument(node.args[0].span, node.args[0]), "the number of steps", frame)}
    if not by_name("every", node.keywords, known, given, frame):
        return None
    for name, argument in given.items():
        found[name] = _folder(argument, frame) if name == "to" else _count(argument, f"`{name}`", frame)
    return None if UNKNOWN in found.values() else found


def _count(argument: Argument, what: str, frame: Frame) -> Any:
    value = whole(argument.evaluate(frame), argument.span, frame.context.sink, what)
    if value is UNKNOWN or value >= 1:
        return value
    return frame.wrong("SH213", f"{what} must be at least 1, and this is {value}", argument.span, str(value))


def _folder(argument: Argument, frame: Frame) -> Any:
    value = argument.evaluate(frame)
    if value is UNKNOWN or (isinstance(value, str) and value):
        return value
    fact, help = "`to` must be the name of a folder", 'write `to = "checkpoints"`'
    return unfit(fact, value, argument.span, frame.context.sink, help)
