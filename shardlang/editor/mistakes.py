"""Diagnostics -> mistakes as an editor shows them: a place in the open file, the other places, and
the edits that their help offers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shardlang.diagnostics.diagnostic import Diagnostic
from shardlang.editor.text import TextEdit, TextPlace, place_of
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast

_QUOTED = re.compile(r"`([^`]+)`")
_MEANT = re.compile(r"did you mean `([^`]+)`\?")
_WRITE = re.compile(r"write `([^`]+)`")
# `mp` could be 1, 2 or 4; `mp = 2` or `mp = 4` would fit
_COULD = re.compile(r"`(\w+)` could be (\d+(?:(?:, | or )\d+)*)")
_FIT = re.compile(r"`(\w+) = (\d+)`(?=(?:,? (?:or )?`\w+ = \d+`)* (?:would fit|fits))")
_RULE = re.compile(r"`(at [^`]+)` fits")
_UNSAID = re.compile(r"\.\.|\b[A-Z]{2,}\b")  # what the user is to fill in: `at NAME: [..]`


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A place in some file. library: whether it is one of `std`."""

    file: str
    library: bool
    start: TextPlace
    end: TextPlace


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits of the open file that may mend a mistake."""

    title: str
    edits: tuple[TextEdit, ...]


@dataclass(frozen=True, slots=True)
class ShownMistake:
    """start, end: its place in the open file (0 and 0 for what is of the whole); related: places
    with what is said of them; fixes: of the text that was checked."""

    code: str
    severity: str
    text: str
    start: int
    end: int
    related: tuple[tuple[FilePlace, str], ...]
    fixes: tuple[Fix, ...]


def mistakes(found: Iterable[Diagnostic], tree: ast.File, strategy: str | None = None) -> list[ShownMistake]:
    """Those of an open file, whose tree may be partial. strategy: the one that they are of, if they
    are of its plan."""
    return [_mistake(diagnostic, tree, strategy) for diagnostic in found]


def _mistake(found: Diagnostic, tree: ast.File, strategy: str | None) -> ShownMistake:
    own = _own(found, tree.source)
    labels = [label for label in (*([found.primary] if found.primary else []), *found.labels) if label.span is not own]
    said = found.primary.text if found.primary is not None and found.primary.span is own else ""
    parts = (found.message, said, *found.notes, *(f"help: {help}" for help in found.help))
    return ShownMistake(
        found.code, found.severity.value, "\n".join(part for part in parts if part),
        start=own.start if own is not None else 0, end=own.end if own is not None else 0,
        related=tuple((_placed(label.span), label.text or found.message) for label in labels),
        fixes=tuple(_fixes(found, own, _strategy(tree, own, strategy), tree)),
    )  # fmt: skip


def _strategy(tree: ast.File, at: Span | None, name: str | None) -> ast.Strategy | None:
    """The strategy of a name, or the one that a place is in."""
    within = (s for s in tree.strategies if at is not None and s.span.start <= at.start < s.span.end)
    return next((s for s in tree.strategies if s.name.text == name), next(within, None))


def _own(found: Diagnostic, source: Source) -> Span | None:
    """Where a mistake is in the open file: there, or at what leads to it."""
    if found.primary is None:
        return None
    callers = (span for span, _ in found.primary.span.callers)
    places = (found.primary.span, *callers, *(label.span for label in found.labels))
    return next((span for span in places if span.source is source), None)


def _placed(span: Span) -> FilePlace:
    text = span.source.text
    ends = place_of(text, span.start), place_of(text, max(span.start, span.end))
    return FilePlace(span.source.name, span.source.library, *ends)


def _fixes(found: Diagnostic, own: Span | None, home: ast.Strategy | None, tree: ast.File) -> Iterator[Fix]:
    for help in found.help:
        if own is not None and (meant := _MEANT.fullmatch(help)):
            yield from _instead(own if meant[1].startswith('"') else _misspelt(found, own), meant[1])
        elif own is not None and (meant := _WRITE.fullmatch(help)) and not _UNSAID.search(meant[1]):
            yield from _instead(own, meant[1])
        yield from _sizes(help, found, tree.source)
        if home is not None:
            yield from _rules(help, home)


def _instead(span: Span | None, text: str) -> Iterator[Fix]:
    if span is not None:
        yield Fix(f"write `{text}`", (TextEdit(span.start, span.end, text),))


def _misspelt(found: Diagnostic, own: Span) -> Span | None:
    """The name within a place that the message quotes first."""
    quoted = _QUOTED.search(found.message)
    at = re.search(rf"(?<!\w){re.escape(quoted[1])}(?!\w)", own.text) if quoted else None
    return Span(own.source, own.start + at.start(), own.start + at.end()) if at else None


def _sizes(help: str, found: Diagnostic, source: Source) -> Iterator[Fix]:
    """Another number for a name, such as an axis of a mesh, that a place of the mistake shows."""
    offers = [(match[1], size) for match in _COULD.finditer(help) for size in re.findall(r"\d+", match[2])]
    offers += [(match[1], match[2]) for match in _FIT.finditer(help)]
    labels = (label for label in (found.primary, *found.labels) if label is not None and label.span.source is source)
    lines = list(dict.fromkeys(source.position(label.span.start)[0] for label in labels))
    for name, size in offers:
        edit = next((edit for line in lines if (edit := _number(source, line, name, size)) is not None), None)
        if edit is not None:
            yield Fix(f"make `{name}` {size}", (edit,))


def _number(source: Source, line: int, name: str, size: str) -> TextEdit | None:
    """The edit of `name = 3` or `name 3` on a line."""
    text = source.line(line)
    at = re.search(rf"(?<![\w.]){re.escape(name)}(?: *= *| +)(\d+|auto)(?!\w)", text)
    begin = source.start_of(line)
    return TextEdit(begin + at.start(1), begin + at.end(1), size) if at and at[1] != size else None


def _rules(help: str, home: ast.Strategy) -> Iterator[Fix]:
    """A rule that fits, as the last line of the strategy."""
    source = home.span.source
    close = source.text.rfind("}", home.span.start, home.span.end)
    for rule in _RULE.findall(help) if close >= 0 else ():
        begin = source.start_of(source.position(close)[0])
        yield Fix(f"add `{rule}`", (TextEdit(begin, begin, f"  {rule}\n"),))
