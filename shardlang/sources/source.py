"""Source files and spans: where in the user's text a thing stands.

Turns offsets into lines and columns; reads nothing and prints nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import field
from functools import cached_property

from shardlang.frozen.records import dataclass

TextRange = tuple[int, int]  # the first character, and the one after the last


@dataclass(frozen=True, eq=False)
class Source:
    """One text and its shown name: a path as the user typed it, or `std.nn`, of the `library`.

    extensions: of a program, the files of declarations that a command names (`--extension`)."""

    name: str
    text: str
    library: bool = False
    extensions: tuple[str, ...] = ()
    begin = 0

    @property
    def source(self) -> Source:
        return self

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(end.end() for end in re.finditer("\n", self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of `offset`, both counted from 1; columns count characters."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def start_of(self, line: int) -> int:
        """The first character of a line, counted from 1."""
        return self._starts[line - 1]

    def line(self, number: int) -> str:
        """The text of line `number` (from 1) without its newline; empty past the end."""
        if not 1 <= number <= len(self._starts):
            return ""
        start = self._starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else None].rstrip("\r")


@dataclass(eq=False, slots=True)
class TextPart:
    """The text of a source from `begin` on. Whoever keeps what was read of a part moves it along
    with the edits of the text before it, and so all places in it."""

    source: Source
    begin: int

    @property
    def text(self) -> str:
        return self.source.text


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of characters of one source.

    first, last: the range, counted from the begin of `home`. callers: for a place in a library, the
    user's own places that lead there, each with what is done there."""

    home: Source | TextPart
    first: int
    last: int
    callers: tuple[tuple[Span, str], ...] = field(default=(), compare=False, repr=False)

    @property
    def source(self) -> Source:
        return self.home.source

    @property
    def start(self) -> int:
        return self.home.begin + self.first

    @property
    def end(self) -> int:
        return self.home.begin + self.last

    @property
    def line(self) -> int:
        return self.source.position(self.start)[0]

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    def place(self) -> str:
        """`file:line:column`, as shown to users."""
        line, column = self.source.position(self.start)
        return f"{self.source.name}:{line}:{column}"

    def to(self, other: Span) -> Span:
        """From the start of this span to the end of `other`."""
        return self.between(self.start, other.end)

    def between(self, start: int, end: int) -> Span:
        """Another range of the source, which moves with this one."""
        return Span(self.home, start - self.home.begin, end - self.home.begin)
