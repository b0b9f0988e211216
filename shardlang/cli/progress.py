"""Progress: on a terminal one line that is rewritten; elsewhere, as in a file, lines in turn."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

# Seconds between lines where there is no terminal.
QUIET = 5.0


class Live:
    """Called with what begins now; `head` stands before it. On a terminal each line takes the place
    of the one before; elsewhere the first is written, and a later one once `QUIET` seconds have
    passed since the last."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.clock, self.head = stream, clock, ""
        self.terminal = stream.isatty()
        self._shown, self._next = 0, 0.0

    def __call__(self, text: str) -> None:
        line = f"{self.head}: {text}" if self.head else text
        if self.terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            self.stream.write("\r" + line.ljust(self._shown))
            self._shown = len(line)
        elif self.clock() >= self._next:
            self.stream.write(f"{line}\n")
            self._next = self.clock() + QUIET
        self.stream.flush()

    def clear(self) -> None:
        """Takes the line off a terminal."""
        if self._shown:
            self.stream.write("\r" + " " * self._shown + "\r")
            self.stream.flush()
            self._shown = 0
