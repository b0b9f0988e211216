"""Diagnostics, one a line: `file:line:column: error[SH304]: message`, for editors and logs."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.diagnostics.diagnostic import Diagnostic
from shardlang.display import one_line


def concise(diagnostics: Iterable[Diagnostic]) -> str:
    """One line each; a mistake outside of any file (on the command line) is `shardc`'s."""
    return "".join(f"{_line(d)}\n" for d in diagnostics)


def _line(diagnostic: Diagnostic) -> str:
    span = diagnostic.primary.span if diagnostic.primary else None
    place = span.place() if span is not None else "shardc"
    said = f"{diagnostic.severity.value}[{diagnostic.code}]: {one_line(diagnostic.message)}"
    if span is not None and span.callers:  # a place that an editor can open
        place, said = span.callers[0][0].place(), f"{said} (in {place})"
    return f"{one_line(place)}: {said}"
