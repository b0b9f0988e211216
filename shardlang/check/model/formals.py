"""Static formals of models and functions: `d: dim`, `layers: int = 6`, `dropout: float`, `bias: bool`, `mode: str`.

Holds a given value against its kind. Where given dims become local dims is `instantiate`'s matter.
"""

from __future__ import annotations

from typing import Any

from shardlang.check.constants import size, whole
from shardlang.check.context import Frame
from shardlang.check.model.arguments import number
from shardlang.check.values import UNKNOWN, DimValue, Tensor, describe
from shardlang.diagnostics.nearest import nearest
from shardlang.source import Span
from shardlang.syntax import ast

KINDS = ("dim", "int", "float", "bool", "str")


def bind_static(formal: ast.Formal, value: Any, span: Span, frame: Frame) -> Any:
    """The value as the formal's kind, UNKNOWN after a report. A dim stays the dim that was given."""
    kind = formal.kind
    assert isinstance(kind, ast.Name)
    name, sink = formal.name.text, frame.context.sink
    if value is UNKNOWN:
        return value
    if isinstance(value, Tensor):
        sink.report("SH210", f"`{name}` must be known before the run, and this is a tensor", span, "a tensor")
        return UNKNOWN
    match kind.text:
        case "dim":
            if isinstance(value, DimValue):
                return value
            length = size(value, span, sink, f"`{name}`")
            if length is None:
                return UNKNOWN
            path = f"{frame.prefix}.{name}" if frame.prefix else name
            return DimValue((frame.context.dims.literal(path, length, span),))
        case "int":
            return whole(value, span, sink, f"`{name}`")
        case "float":
            return number(value, span, frame, f"`{name}`", True)
        case "bool" | "str":
            if isinstance(value, bool if kind.text == "bool" else str):
                return value
            sink.report(
                "SH210", f"`{name}` is of kind {kind.text}, and this is {describe(value)}", span, describe(value)
            )
            return UNKNOWN
    close = nearest(kind.text, KINDS)
    sink.report(
        "SH208",
        f"there is no kind `{kind.text}`",
        kind.span,
        "unknown kind",
        help=f"did you mean `{close}`?" if close else f"the kinds are {', '.join(KINDS)}, or a tensor type",
    )
    return UNKNOWN
