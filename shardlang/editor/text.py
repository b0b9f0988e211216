"""The text of an open file: lines and UTF-16 columns, as editors count, from offsets and back; and
what an edit does to the text and to places in it.

A line ends at a newline, a return, or both (`\\r\\n`)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from shardlang.frozen.records import dataclass

_END = re.compile(r"\r\n|\n|\r")
_LARGEST_OF_ONE = 0xFFFF  # a character above this has two units in UTF-16


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A line, from 0, and a column in units of UTF-16, from 0."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class TextEdit:
    """`text` in place of the characters from `start` to before `end`."""

    start: int
    end: int
    text: str

    @property
    def growth(self) -> int:
        """The characters by which the text becomes longer."""
        return len(self.text) - (self.end - self.start)


@lru_cache(maxsize=32)
def _lines(text: str) -> Sequence[tuple[int, int]]:
    """Per line its first character, and the one after its last, without its end."""
    ends = [(end.start(), end.end()) for end in _END.finditer(text)]
    starts = [0, *(after for _, after in ends)]
    return list(zip(starts, [*(at for at, _ in ends), len(text)], strict=True))


def place_of(text: str, offset: int) -> TextPlace:
    """The line and the column of a character."""
    offset = min(max(offset, 0), len(text))
    lines = _lines(text)
    line = bisect_right(lines, (offset, len(text) + 1)) - 1
    before = text[lines[line][0] : offset]
    return TextPlace(line, len(before) + (0 if before.isascii() else _pairs(before)))


def _pairs(text: str) -> int:
    return sum(ord(character) > _LARGEST_OF_ONE for character in text)


def offset_of(text: str, place: TextPlace) -> int:
    """The character at a line and a column. Beyond a line it is the line's end, beyond the text the
    text's end, and within a pair of units the character that they make."""
    lines = _lines(text)
    if place.line >= len(lines):
        return len(text)
    start, end = lines[max(place.line, 0)]
    if text[start:end].isascii():
        return min(start + max(place.column, 0), end)
    at, left = start, place.column
    while at < end and left > 0:
        left -= 1 + (ord(text[at]) > _LARGEST_OF_ONE)
        at += left >= 0
    return at


def edited(text: str, edit: TextEdit) -> str:
    return text[: edit.start] + edit.text + text[edit.end :]


def moved(offset: int, edit: TextEdit) -> int:
    """Where a place is after an edit. A place within what is replaced goes to the edit's end."""
    if offset < edit.start or (offset == edit.start and edit.start < edit.end):
        return offset
    return max(offset, edit.end) + edit.growth
