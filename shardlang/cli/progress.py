"""One line on a terminal that says what is going on; nothing elsewhere."""

from __future__ import annotations

import shutil
from typing import TextIO


class Live:
    """Called with what begins now; `head` stands before it. Each line takes the place of the one before."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.head, self._shown = stream, "", 0
        self.on = stream.isatty()

    def __call__(self, text: str) -> None:
        if not self.on:
            return
        line = f"{self.head}: {text}" if self.head else text
        line = line[: shutil.get_terminal_size().columns - 1]
        self.stream.write("\r" + line.ljust(self._shown))
        self.stream.flush()
        self._shown = len(line)

    def clear(self) -> None:
        if self._shown:
            self.stream.write("\r" + " " * self._shown + "\r")
            self.stream.flush()
            self._shown = 0
