"""A fault that the proof finds -> its diagnostic."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Span

_HELP = "this is a fault of shardc: please report it with the program and the command"


def report(sink: Sink, code: str, fact: str, places: Iterable[tuple[Span | None, str]]) -> None:
    """Reports a fault at the first of the places, and what is said of each of them."""
    known = [(span, said) for span, said in places if span is not None]
    first = known[0] if known else (None, "")
    sink.report(code, fact, *first, labels=known[1:], help=_HELP)
