"""Bytes that are written -> a line of progress, once it takes long; broken checkpoints -> a line on
each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from shardlang.cli import output
from shardlang.errors import RunError
from shardlang.terminal.display import Live

# Seconds between two lines, and before the first.
_PACE = 0.2


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Gives what is to be called with bytes as they are written; `total` are due."""
    done = 0

    def told(bytes: int) -> None:
        nonlocal done
        done += bytes
        if live.due:
            live(f"wrote {done / 1e9:.1f} of {total / 1e9:.1f} GB")

    with Live(sys.stderr, pace=_PACE) as live:
        live.rest()
        yield told


def tell_passed(passed: Iterable[RunError]) -> None:
    """Tells of broken checkpoints, in place of which an older one is read."""
    for each in passed:
        output.tell(f"{each.file} is passed over: {each.message}", sys.stderr)
