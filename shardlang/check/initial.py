"""How a parameter or state starts: `normal(0.02)`, `zeros()`, `kaiming_uniform(in)`, with its numbers resolved.

Drawing the numbers is left to the runtime.
"""

from __future__ import annotations

from typing import Any

from shardlang.check.arguments import number
from shardlang.check.context import Frame
from shardlang.check.values import UNKNOWN
from shardlang.diagnostics.nearest import nearest
from shardlang.graph.graph import Init
from shardlang.syntax import ast

# kind -> the names of its numbers; all are required but those of normal and uniform.
KINDS: dict[str, tuple[str, ...]] = {
    "zeros": (),
    "ones": (),
    "constant": ("value",),
    "normal": ("std",),
    "uniform": ("low", "high"),
    "kaiming_uniform": ("fan_in",),
    "xavier_uniform": ("fan_in", "fan_out"),
}
_DEFAULTS = {"std": 1.0, "low": 0.0, "high": 1.0}


def initial(node: ast.Expr, frame: Frame) -> Init | None:
    """The start that `node` names; None after a report or where a number is unknown."""
    sink = frame.context.sink
    if not isinstance(node, ast.Call) or not isinstance(node.callee, ast.Name):
        sink.report(
            "SH222",
            "a parameter starts from a named distribution",
            node.span,
            "none of them",
            help=f"the starts are {', '.join(KINDS)}: `zeros()`, `normal(0.02)`",
        )
        return None
    name = node.callee.text
    if name not in KINDS:
        close = nearest(name, KINDS)
        sink.report(
            "SH222",
            f"there is no start `{name}`",
            node.callee.span,
            "unknown",
            help=f"did you mean `{close}`?" if close else f"the starts are {', '.join(KINDS)}",
        )
        return None
    return _numbers(name, node, frame)


def _numbers(name: str, node: ast.Call, frame: Frame) -> Init | None:
    sink, wanted = frame.context.sink, KINDS[name]
    given: dict[str, ast.Expr] = {}
    for at, argument in enumerate(node.args):
        if at >= len(wanted):
            sink.report(
                "SH218",
                f"`{name}` takes {len(wanted)} argument{'s' * (len(wanted) != 1)}",
                argument.span,
                "one too many",
            )
            return None
        given[wanted[at]] = argument
    for keyword in node.keywords:
        if keyword.name.text not in wanted:
            close = nearest(keyword.name.text, wanted)
            sink.report(
                "SH220",
                f"`{name}` has no argument `{keyword.name.text}`",
                keyword.name.span,
                "unknown argument",
                help=f"did you mean `{close}`?" if close else (),
            )
            return None
        given[keyword.name.text] = keyword.value
    found: list[Any] = []
    for part in wanted:
        if part not in given and part not in _DEFAULTS:
            sink.report(
                "SH221",
                f"`{name}` needs `{part}`",
                node.span,
                f"`{part}` is not given",
                help=f"write `{name}({part})` with its number",
            )
            return None
        value = frame.evaluate(given[part]) if part in given else _DEFAULTS[part]
        found.append(number(value, given[part].span if part in given else node.span, frame, f"`{part}`", True))
    return None if UNKNOWN in found else Init(name, tuple(found))
