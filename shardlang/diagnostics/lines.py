"""Diagnostics, one a line, for editors, `grep` and programs: `file:line:column: error[SH304]:
message`, or a JSON object as specs/diagnostic.schema.json describes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shardlang.diagnostics.diagnostic import Diagnostic, Label
from shardlang.terminal.display import one_line


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


def jsonlines(diagnostics: Iterable[Diagnostic]) -> str:
    """A JSON object each, in ASCII: other characters are escaped."""
    return "".join(f"{json.dumps(_object(d))}\n" for d in diagnostics)


def _object(diagnostic: Diagnostic) -> dict[str, Any]:
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity.value,
        "message": diagnostic.message,
        "primary": place(diagnostic.primary) if diagnostic.primary else None,
        "labels": [place(label) for label in diagnostic.labels],
        "notes": list(diagnostic.notes),
        "help": list(diagnostic.help),
    }


def place(label: Label) -> dict[str, Any]:
    """File, start and end (lines and columns from 1, the end exclusive), offsets in characters, and
    the text."""
    span = label.span
    line, column = span.source.position(span.start)
    end_line, end_column = span.source.position(span.end)
    return {
        "file": span.source.name, "line": line, "column": column, "end_line": end_line, "end_column": end_column,
        "start": span.start, "end": span.end, "text": label.text,
    }  # fmt: skip
