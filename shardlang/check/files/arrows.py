"""The dims of a result, as in `einsum(x, w -> [..., out])`, where nothing reads them -> a report.

Goes through the tree: a call is read in many places, as a layer, a setting or a source of data."""

from __future__ import annotations

import shardlang.ops.all_families  # noqa: F401  (fills the registry)
from shardlang.diagnostics.diagnostic import Sink
from shardlang.ops.declaration import REGISTRY, Arrow
from shardlang.syntax import ast


def require_read(file: ast.File, sink: Sink) -> None:
    """Reports each `-> [...]` of a call of what is no operator that takes it, by its name."""
    for call in ast.nodes_of(file.items) if not file.source.library else ():
        if not isinstance(call, ast.Call):
            continue
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
