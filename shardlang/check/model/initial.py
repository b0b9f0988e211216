"""How a parameter or state starts: `normal(0.02)`, `zeros()`, `kaiming_uniform(in)`, with its
numbers resolved.

Drawing the numbers is left to the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.declared import DeclaredKind
from shardlang.check.model.arguments import declared_arguments
from shardlang.graph.graph import Init
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import Param
from shardlang.syntax import ast

_FAN_IN = Param("fan_in", "number")
KINDS: Mapping[str, DeclaredKind] = {
    "zeros": DeclaredKind("Every element is 0."),
    "ones": DeclaredKind("Every element is 1."),
    "constant": DeclaredKind("Every element is `value`.", (Param("value", "number"),)),
    "normal": DeclaredKind("Normal numbers of mean 0 and deviation `std`.", (Param("std", "number", 1.0),)),
    "uniform": DeclaredKind(
        "Numbers from `low` to below `high`.", (Param("low", "number", 0.0), Param("high", "number", 1.0))
    ),
    "kaiming_uniform": DeclaredKind(
        "Numbers within 1 / sqrt(fan_in), as torch.nn.Linear and Conv2d draw weight and bias.", (_FAN_IN,)
    ),
    "xavier_uniform": DeclaredKind(
        "Numbers within sqrt(6 / (fan_in + fan_out)), as torch.nn.init.xavier_uniform_ draws them.",
        (_FAN_IN, Param("fan_out", "number")),
    ),
    "given": DeclaredKind("The numbers that `init` of `train` reads: a table of positions, say, which nothing draws."),
}


def initial(node: ast.Expr, frame: Frame) -> Init:
    """The start that `node` names; Reported where it names none, or a number is unknown."""
    starts = f"the initial values are {', '.join(KINDS)}"
    if not isinstance(node, ast.Call) or not isinstance(node.callee, ast.Name):
        help = f"{starts}: `zeros()`, `normal(0.02)`"
        frame.refuse("SH222", "a parameter starts from a named distribution", node.span, "none of them", help=help)
    name = node.callee.text
    if name not in KINDS:
        help = offer(name, KINDS, starts)
        frame.refuse("SH222", f"there is no initial value `{name}`", node.callee.span, "unknown", help=help)
    params = KINDS[name].params
    given = declared_arguments(name, params, node, frame, len(params))
    found = [given.get(param.name, param.default) for param in params]
    _require_range(name, found, node, frame)
    return Init(name, tuple(found))


def _require_range(name: str, found: list[Any], node: ast.Call, frame: Frame) -> None:
    """A deviation is not negative, a range not empty, a fan at least 1."""
    if name == "normal" and found[0] < 0:
        fact, help = f"a deviation is not below 0, and this is {found[0]:g}", "write `normal(0.02)`, say"
    elif name == "uniform" and found[0] > found[1]:
        fact, help = f"the range {found[0]:g} to {found[1]:g} is empty", "write the lower bound first"
    elif name.endswith("_uniform") and min(found) < 1:
        fact, help = f"a fan is at least 1, and this is {min(found):g}", "give it the dims that are summed over"
    else:
        return
    frame.refuse("SH293", fact, node.span, "out of range", help=help)
