"""`checkpoint = every(100, keep = 4, to = "checkpoints")` -> how often, how many and where, as
frozen values; `log = every(100)` likewise.

Writing and reading checkpoints, and what is logged, is the runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.declared import called
from shardlang.check.model.arguments import declared_arguments
from shardlang.ops.declaration import Param
from shardlang.syntax import ast

_STEPS = Param("steps", "int")


def read_checkpoint(node: ast.Expr, frame: Frame) -> tuple[str, Mapping[str, Any]] | None:
    """("every", {"steps": 100, "keep": 4, "to": "checkpoints"}); None after a report."""
    help = 'write `checkpoint = every(100, keep = 4, to = "checkpoints")`'
    params = (_STEPS, Param("keep", "int", 0), Param("to", "str", "checkpoints"))
    found = _every(node, params, "`checkpoint` is how often to write one", help, frame)
    return None if found is None else ("every", {"keep": 0, "to": "checkpoints", **found})


def read_log(node: ast.Expr, frame: Frame) -> Mapping[str, Any] | None:
    """{"steps": 100}; None after a report."""
    return _every(node, (_STEPS,), "`log` is how often each rank writes to its log", "write `log = every(100)`", frame)


def _every(node: ast.Expr, params: tuple[Param, ...], fact: str, help: str, frame: Frame) -> dict[str, Any] | None:
    """The arguments of `every`; None after a report."""
    if isinstance(node, ast.Call) and called(node) == "every" and len(node.args) == 1:
        return declared_arguments("every", params, node, frame, 1)
    frame.wrong("SH237", fact, node.span, "here", help=help)
    return None
