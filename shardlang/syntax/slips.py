"""Checks what the grammar cannot say of nodes that parse: selectors' spelling, the order of
arguments, pipes.

Reports what is wrong (SH113 to SH115); the nodes are made all the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import Sink
from shardlang.source import Span
from shardlang.syntax import ast

_GLOB = re.compile(r"\*\*|(?:\*?[A-Za-z0-9_])+\*?|\*")


def check_glob(text: str, parts: Sequence[object], span: Span, sink: Sink) -> None:
    """A selector's part is `**`, or a name that may hold single `*`, in one piece."""
    if len(parts) == 1 or _GLOB.fullmatch(text):
        return
    if any(c.isspace() for c in text):
        message, help = (
            f"`{text}` is not one name",
            f"write `{''.join(text.split())}`, or a comma between two selectors",
        )
    else:
        message, help = (
            "`**` stands for whole parts of a path",
            f"write `{text.replace('**', '*')}`, or `.` round the `**`",
        )
    sink.report("SH114", message, span, help=help)


def check_order(args: Sequence[ast.Expr | ast.Keyword | ast.Field], sink: Sink) -> None:
    """Arguments without a name come first."""
    named: ast.Keyword | ast.Field | None = None
    for arg in args:
        if isinstance(arg, ast.Keyword | ast.Field):
            named = named or arg
        elif named is not None:
            sink.report(
                "SH113", "an argument without a name follows one with a name", arg.span,
                labels=[(named.span, f"`{named.name.text}` has a name")],
                help=f"put it before `{named.name.text}`, or write `name = {arg.span.text}`",
            )  # fmt: skip
            return


def check_piped(right: ast.Expr, sink: Sink) -> None:
    """The right side of `|>` is something to call."""
    if not isinstance(right, ast.Name | ast.Attribute | ast.Index | ast.Call):
        sink.report(
            "SH115", f"`{right.span.text}` cannot take what the pipe passes on", right.span,
            "neither a layer nor an operator",
            help="write the name of a layer or an operator after `|>`, as in `x |> relu`",
        )  # fmt: skip
