"""Turns text that may hold anything into what a terminal can show safely, and says how many cells
each character takes.

Characters that would move the cursor or reorder the line (controls, escapes, bidi marks, zero-width
ones), and spaces that are none to the language, are shown as `<U+202E>`. Which parts of a line are
marked is left to the renderers. A line that tells what is going on is written over."""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Callable
from typing import TextIO

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


def duration(seconds: float) -> str:
    """`4.36 s`, `12.3 ms`, `850 us`: three digits."""
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= 0.9995 * s), ("us", 1e-6))
    number = seconds / scale
    return f"{number:,.{max(0, 2 - len(str(int(number))) + 1)}f} {unit}"


def percent(share: float) -> str:
    """`41.3%`: a share of 1, to a tenth of a hundredth."""
    return f"{share:.1%}"


# Seconds between lines where there is no terminal.
QUIET = 5.0


class Live:
    """Progress: called with what begins now; `head` stands before it. On a terminal each line takes
    the place of the one before; elsewhere the first is written, and a later one once `QUIET`
    seconds have passed since the last. pace: seconds after which a line is due on a terminal."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, pace: float = 0.0) -> None:
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
            import shutil  # no command but those that take long needs it

            line = line[: shutil.get_terminal_size().columns - 1]
            self.stream.write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        elif always or self.due:
            self.stream.write(f"{line}\n")
        else:
            return
        self.stream.flush()
        self.rest()

    def clear(self) -> None:
        """Takes the line off a terminal."""
        if self._shown:
            self.stream.write("\r" + " " * self._shown + "\r")
            self.stream.flush()
            self._shown = 0

    def say(self, text: str) -> None:
        """Writes a line that stays."""
        self.clear()
        self.stream.write(f"{text}\n")
        self.stream.flush()

    def keep(self) -> None:
        """Leaves the line as it is; what comes next has one of its own."""
        self.stream.write("\n" * bool(self._shown))
        self.stream.flush()
        self._shown = 0
