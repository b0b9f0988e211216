"""Turns text that may hold anything into what a terminal can show safely, and says how many cells
each character takes.

Characters that would move the cursor or reorder the line (controls, escapes, bidi marks, zero-width
ones), and spaces that are none to the language, are shown as `<U+202E>`. Which parts of a line are
marked is left to the renderers."""

from __future__ import annotations

import unicodedata

TAB = 4


def shown(character: str, cell: int) -> str:
    """The text for `character` at cell `cell`: spaces up to a tab stop; an escape; or itself."""
    if " " <= character <= "~":
        return character
    if character == "\t":
        return " " * (TAB - cell % TAB)
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"):
        return f"<U+{ord(character):04X}>"
    return character


def width(text: str) -> int:
    """Cells that shown text takes: 0 for a combining mark, 2 for a wide character."""
    if text.isascii():
        return len(text)
    return sum(_width(c) for c in text)


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def safe(text: str) -> str:
    """A message as a terminal may show it; its line ends stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == "\n" else shown(c, 0) for c in text)


def one_line(text: str) -> str:
    """A text as a terminal may show it on one line, ends of lines as `<U+000A>`."""
    return safe(text).replace("\n", "<U+000A>")


def laid_out(line: str) -> tuple[str, list[int]]:
    """A line as shown, and the cell at which each character starts (and where the line ends)."""
    parts: list[str] = []
    cells = [0]
    for character in line:
        part = shown(character, cells[-1])
        parts.append(part)
        cells.append(cells[-1] + width(part))
    return "".join(parts), cells
