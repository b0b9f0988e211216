"""Turns text that may hold anything into what a terminal can show safely, and says how many cells
each character takes.

Characters that would move the cursor or reorder the line (controls, escapes, bidi marks, zero-width
ones), and spaces that are none to the language, are shown as `<U+202E>`. Which parts of a line are
marked is left to the renderers. A line that tells what is going on is written over."""

from __future__ import annotations

import math
import os
import re
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import Protocol

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
    seen = (c for c in text if unicodedata.category(c) not in ("Mn", "Me"))
    return sum(2 if unicodedata.east_asian_width(c) in ("W", "F") else 1 for c in seen)


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


_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def size(count: int, up: bool = False) -> str:
    """Bytes in three digits: `1.05 MB`. up: rounded up."""
    for unit, each in _UNITS:
        if count >= each:
            digits = 2 if count < 10 * each else 1 if count < 100 * each else 0
            number = math.ceil(count / each * 10**digits) / 10**digits if up else count / each
            return f"{number:,.{digits}f} {unit}"
    return f"{count} B"


def rounded_up(count: int) -> str:
    """Bytes that are needed, in three digits."""
    return size(count, up=True)


def duration(seconds: float) -> str:
    """`4.36 s`, `12.3 ms`, `850 us`: three digits."""
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= 0.9995 * s), ("us", 1e-6))
    number = seconds / scale
    return f"{number:,.{max(0, 2 - len(str(int(number))) + 1)}f} {unit}"


def lasting(seconds: float) -> str:
    """`3.2 days`, `7.5 hours`: of a whole run, in the greatest unit of which there are two."""
    units = ("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)
    unit, scale = next(((u, s) for u, s in units if seconds >= 2 * s), ("seconds", 1.0))
    return f"{seconds / scale:,.1f} {unit}"


def percent(share: float) -> str:
    """`41.3%`: a share of 1, to a tenth of a hundredth."""
    return f"{share:.1%}"


# In place of a blank at which no line is to be broken.
_BLANK = "\0"
# Seconds between lines where there is no terminal.
QUIET = 5.0


class Writable(Protocol):
    """A stream that lines are written to."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...

    def fileno(self) -> int: ...


class Live:
    """Progress: called with what begins now; `head` stands before it. On a terminal each line takes
    the place of the one before; elsewhere the first is written, and a later one once `QUIET`
    seconds have passed since the last. pace: seconds after which a line is due on a terminal."""

    def __init__(self, stream: Writable, clock: Callable[[], float] = time.monotonic, pace: float = 0.0) -> None:
        self.stream, self.clock, self.head = stream, clock, ""
        self.terminal = stream.isatty()
        self._pace = pace if self.terminal else QUIET
        self._shown, self._next = 0, 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for another line."""
        return self.clock() >= self._next

    def rest(self) -> None:
        """No further line is due for a while."""
        self._next = self.clock() + self._pace

    def __call__(self, text: str, always: bool = False) -> None:
        line = f"{self.head}: {text}" if self.head else text
        if self.terminal:
            line = _fitting(line, _columns(self.stream) - 1)
            self.stream.write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        elif always or self.due:
            self.stream.write(f"{line}\n")
        else:
            return
        self.stream.flush()
        self.rest()

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Takes the line off a terminal, as the end of a `with` does."""
        if self._shown:
            self.stream.write("\r" + " " * self._shown + "\r")
            self.stream.flush()
            self._shown = 0

    def say(self, text: str) -> None:
        """Writes a line that stays; a terminal gets it in lines that it need not break itself."""
        self.clear()
        if self.terminal:
            import textwrap  # as below

            wide = _columns(self.stream)
            whole = _whole(text) if all(len(each) < wide - 2 for each in text.split("  ")) else text
            parts = textwrap.wrap(whole, wide, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")
            text = "\n".join(parts).replace(_BLANK, " ")
        self.stream.write(f"{text}\n")
        self.stream.flush()


def _whole(text: str) -> str:
    """A line whose entries (two spaces are between them) are each one word, as a name and its
    number are; a line without entries as it is."""
    return re.sub(r"(?<=\S) (?=\S)", _BLANK, text) if "  " in text else text


def _columns(stream: Writable) -> int:
    """The width of a stream's own terminal: the standard output of a rank is its log."""
    import shutil  # no command but those that take long needs it

    try:
        return os.get_terminal_size(stream.fileno()).columns or shutil.get_terminal_size().columns
    except OSError:
        return shutil.get_terminal_size().columns


def _fitting(line: str, most: int) -> str:
    """A line, without the last of its entries (two spaces are between them) that do not fit."""
    if len(line) <= most:
        return line
    cut = line[: most + 2]
    return cut.rpartition("  ")[0][:most] or line[:most]


class Aligned:
    """The entries of lines, by name -> a line in which each begins where it began before, numbers
    end where they ended."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def __call__(self, entries: Mapping[str, str]) -> str:
        shown = []
        for name, text in entries.items():
            wide = self._widths[name] = max(self._widths.get(name, 0), len(text))
            shown.append(text.rjust(wide) if text[:1].isdigit() else text.ljust(wide))
        return "  ".join(shown).rstrip()
