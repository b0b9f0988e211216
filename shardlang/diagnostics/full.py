"""Diagnostics for people: the message, the source lines with every label under its place, notes and
text to type.

Text only, with or without colour; where it goes is left to cli/."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardlang.diagnostics.diagnostic import Diagnostic, Label, Severity
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Source
from shardlang.terminal.display import laid_out, one_line, safe, width

_COLOURS = {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.NOTE: "1;36"}
_GUTTER, _SECOND, _STRONG = "1;34", "1;34", "1"
# A longer line is shown in part, around its first label.
_LONGEST, _BEFORE = 240, 60


def full(diagnostics: Iterable[Diagnostic], colour: bool = False) -> str:
    """All diagnostics, each followed by an empty line."""
    return "".join(_Page(d, colour).text() + "\n" for d in diagnostics)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A label on one line: the cells it underlines, its sign and its text."""

    start: int
    end: int
    sign: str
    text: str


class _Page:
    """One diagnostic being written."""

    def __init__(self, diagnostic: Diagnostic, colour: bool) -> None:
        self.diagnostic, self.colour = diagnostic, colour
        self.labels = ([diagnostic.primary] if diagnostic.primary else []) + list(diagnostic.labels)
        self.gutter = max((len(str(label.span.line)) for label in self.labels), default=1)

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def text(self) -> str:
        d = self.diagnostic
        head = self.paint(f"{d.severity.value}[{d.code}]", _COLOURS[d.severity])
        lines = [head + self.paint(f": {one_line(d.message)}", _STRONG)]
        for source in dict.fromkeys(label.span.source for label in self.labels):
            lines += self._file(source)
        if self.labels and (d.notes or d.help):
            lines.append(self._bar())
        for kind, code, texts in (("note", _COLOURS[Severity.NOTE], d.notes), ("help", "1;32", d.help)):
            indent = "\n" + " " * (len(kind) + 2)
            lines += [f"{self.paint(kind, code)}: {safe(text).replace(chr(10), indent)}" for text in texts]
        return "\n".join(lines) + "\n"

    def _bar(self, number: str = "") -> str:
        return self.paint(f"{number:>{self.gutter}} |", _GUTTER)

    def _file(self, source: Source) -> list[str]:
        """The arrow to the file's first place, then each line that has a label."""
        mine = [label for label in self.labels if label.span.source is source]
        arrow = "-->" if mine[0] is self.diagnostic.primary else ":::"
        lines = [" " * self.gutter + self.paint(arrow, _GUTTER) + f" {one_line(mine[0].span.place())}", self._bar()]
        for number in sorted({label.span.line for label in mine}):
            lines += self._line(source, number, [label for label in mine if label.span.line == number])
        return lines

    def _line(self, source: Source, number: int, labels: list[Label]) -> list[str]:
        """One source line, and what is said under it."""
        whole = source.line(number)
        columns = [source.position(label.span.start)[1] - 1 for label in labels]
        skipped = max(0, min(columns) - _BEFORE) if len(whole) > _LONGEST else 0
        text, cells = laid_out(whole[skipped : skipped + _LONGEST])
        before, after = ("..." if skipped else ""), ("..." if len(whole) > skipped + _LONGEST else "")
        places = zip(labels, columns, strict=True)
        marks = [self._mark(label, column - skipped, cells, len(before)) for label, column in places]
        rows = [f"{self._bar(str(number))} {before}{text}{after}".rstrip()]
        return rows + [f"{self._bar()} {row}".rstrip() for row in self._under(marks)]

    def _mark(self, label: Label, column: int, cells: list[int], shift: int) -> _Mark:
        """The cells of a label; one of several lines is marked to the end of its first."""
        last = len(cells) - 1
        begin = cells[min(column, last)]
        end = cells[min(column + label.span.end - label.span.start, last)]
        sign = "^" if label is self.diagnostic.primary else "-"
        return _Mark(begin + shift, max(end, begin + 1) + shift, sign, one_line(label.text))

    def _under(self, marks: list[_Mark]) -> list[str]:
        """The underlines, the last mark's text beside it, then the others from right to left."""
        order = sorted(marks, key=lambda m: (m.start, m.end))
        line = _ExcerptCells()
        for mark in sorted(order, key=lambda m: m.sign == "^"):
            line.put(mark.start, mark.sign * (mark.end - mark.start), self._code(mark))
        *others, last = order
        if any(mark.end > last.start for mark in others):
            others, last = order, _Mark(0, 0, "", "")
        if last.text:
            line.put(last.end + 1, last.text, self._code(last))
        rows = [line]
        hanging = [mark for mark in others if mark.text]
        while hanging:
            mark = hanging.pop()
            row = _ExcerptCells()
            for other in hanging:
                row.put(other.start, "|", self._code(other))
            row.put(mark.start, mark.text, self._code(mark))
            rows.append(row)
        return [row.text(self.paint) for row in rows]

    def _code(self, mark: _Mark) -> str:
        return _COLOURS[self.diagnostic.severity] if mark.sign == "^" else _SECOND


class _ExcerptCells:
    """A row of cells, each with a colour; later text covers earlier."""

    def __init__(self) -> None:
        self.cells: list[tuple[str, str]] = []

    def put(self, at: int, text: str, code: str) -> None:
        """Text from cell `at`. A wide character has an empty cell; combining marks join theirs."""
        self.cells += [(" ", "")] * (at - len(self.cells))
        for character in text:
            size = width(character)
            if size == 0 and at > 0:
                self.cells[at - 1] = (self.cells[at - 1][0] + character, code)
                continue
            self.cells[at : at + size] = [(character, code), ("", code)][:size]
            at += size

    def text(self, paint: Callable[[str, str], str]) -> str:
        """The row, each run of one colour painted once."""
        parts: list[str] = []
        run, code = "", ""
        for character, mine in [*self.cells, ("", "end")]:
            if mine != code:
                parts.append(paint(run, code) if code else run)
                run, code = "", mine
            run += character
        return "".join(parts)
