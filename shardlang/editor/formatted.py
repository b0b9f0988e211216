"""A file, or some lines of it -> the edits that bring it into its one form."""

from __future__ import annotations

from difflib import SequenceMatcher

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.text import TextEdit
from shardlang.sources.source import Source


def format_edits(source: Source, start: int = 0, end: int | None = None) -> list[TextEdit]:
    """The edits within a range of characters, a group of lines each; none of a file with mistakes
    of syntax."""
    made = driver.format_source(source, Sink())
    if made is None:
        return []
    old, new = source.text.splitlines(keepends=True), made.splitlines(keepends=True)
    starts = [0]
    for line in old:
        starts.append(starts[-1] + len(line))
    last = len(source.text) if end is None else end
    found = []
    for kind, first, after, begin, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        edit = TextEdit(starts[first], starts[after], "".join(new[begin:stop]))
        if kind != "equal" and edit.start <= last and edit.end >= start:
            found.append(edit)
    return found
