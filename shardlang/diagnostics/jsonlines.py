"""Diagnostics for programs: one JSON object a line, as specs/diagnostic.schema.json describes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shardlang.diagnostics.diagnostic import Diagnostic, Label


def jsonlines(diagnostics: Iterable[Diagnostic]) -> str:
    """All in ASCII: other characters are escaped."""
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
    """File, start and end (lines and columns from 1, end exclusive), offsets, text."""
    span = label.span
    line, column = span.source.position(span.start)
    end_line, end_column = span.source.position(span.end)
    return {
        "file": span.source.name,
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
        "start": span.start,
        "end": span.end,
        "text": label.text,
    }
