"""The two lines of a fault -> the places of its diagnostic."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.matched.lines import Line
from shardlang.sources.source import Span

HELP = "this is a fault of shardc: please report it with the program and the command"


def places(lines: Sequence[tuple[Line | None, str]]) -> tuple[Span | None, list[tuple[Span, str]]]:
    """The first place, and the others with what is said there."""
    spans = [(line.span, said) for line, said in lines if line is not None and line.span is not None]
    return (spans[0][0] if spans else None), spans[1:]
