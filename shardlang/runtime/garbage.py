"""Python's garbage of a rank -> collected in the same steps on all of them.

Python collects when a process has made many objects, which is in another step on each rank, and a
rank that collects makes all others wait."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What has outlived one collection is looked at so much less often.
_OLD = 20


@contextmanager
def collected(every: int) -> Iterator[Callable[[int], None]]:
    """Gives a function to call after each step with its number, which collects after each `every`
    steps; meanwhile Python does not by itself. 0: Python does, and the function nothing."""
    if not every or not gc.isenabled():
        yield lambda step: None
        return

    def tidy(step: int) -> None:
        if step % every == 0:
            gc.collect(2 if step % (every * _OLD) == 0 else 1)

    gc.disable()
    try:
        yield tidy
    finally:
        gc.enable()
