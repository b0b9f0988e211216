"""Bytes that are written -> a line of progress, once it takes long."""

from __future__ import annotations

import sys
from types import TracebackType

from shardlang.terminal.display import Live

# Seconds between two lines, and before the first.
_PACE = 0.2


class WriteProgress:
    """Called with bytes as they are written; `total` are due."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._live = Live(sys.stderr, pace=_PACE)

    def __enter__(self) -> WriteProgress:
        self._live.rest()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.clear()

    def __call__(self, bytes: int) -> None:
        self.done += bytes
        if self._live.due:
            self._live(f"wrote {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB")
