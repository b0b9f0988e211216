"""An open file and the places of a name -> whether the program holds with another name there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardlang.diagnostics.diagnostic import Diagnostic
from shardlang.editor.kept import Kept
from shardlang.editor.open_file import OpenFile
from shardlang.editor.text import TextEdit, edited
from shardlang.sources.files import Files
from shardlang.sources.source import Source, Span


def broken(file: OpenFile, places: Iterable[Span], new: str, files: Files) -> str:
    """The first mistake that the program has more with another name, in a sentence; "" where there
    is none. files: those that imports find, as they are. (A dim in the result of a call may stand
    for one that only types tell.)"""
    by_source: dict[str, list[Span]] = {}
    for place in places:
        by_source.setdefault(place.source.name, []).append(place)
    source = Source(file.name, file.text)
    for spans in by_source.values():
        of = spans[0].source
        text = of.text
        for span in sorted(spans, key=lambda span: span.start, reverse=True):
            text = edited(text, TextEdit(span.start, span.end, new))
        made = Source(of.name, text, of.library)
        files.add(made)
        source = made if of.name == file.name else source
    found = Kept().check(source, files).found
    before = file.checked.found if file.checked is not None else ()
    if len(found) <= len(before):
        return ""
    mistake = _first_new(before, found)
    line = mistake.primary.span.line if mistake.primary is not None else 1
    return f"With `{new}` the program would have a mistake in line {line}: {mistake.message}."


def _first_new(before: Sequence[Diagnostic], found: Sequence[Diagnostic]) -> Diagnostic:
    known = [each.message for each in before]
    return next((each for each in found if each.message not in known), found[0])
