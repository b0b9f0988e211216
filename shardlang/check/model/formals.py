"""Static formals of models and functions: `d: dim`, `layers: int = 6`, `dropout: float`,
`bias: bool`, `mode: str`.

Holds a given value against its kind. Where given dims become local dims is `instantiate`'s matter.
"""

from __future__ import annotations

from typing import Any

from shardlang.check.constants import size, whole
from shardlang.check.context import Frame
from shardlang.check.model.arguments import number
from shardlang.check.values import UNKNOWN, DimValue, Tensor, unfit
from shardlang.hints.nearest import offer
from shardlang.sources.source import Span
from shardlang.syntax import ast

KINDS = ("dim", "int", "float", "bool", "str")


def bind_static(formal: ast.Formal, value: Any, span: Span, frame: Frame) -> Any:
    """The value as the formal's kind, UNKNOWN after a report. A dim stays the caller's dim."""
    kind = formal.kind
    assert isinstance(kind, ast.Name)
    name, sink = formal.name.text, frame.context.sink
    if value is UNKNOWN:
        return value
    if isinstance(value, Tensor):
        return unfit(f"`{name}` must be known before the run", value, span, sink)
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
            return unfit(f"`{name}` is of kind {kind.text}", value, span, sink)
    help = offer(kind.text, KINDS, f"the kinds are {', '.join(KINDS)}, or a tensor type")
    return frame.wrong("SH208", f"there is no kind `{kind.text}`", kind.span, "unknown kind", help=help)
