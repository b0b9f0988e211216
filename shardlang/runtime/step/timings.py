"""Times of what runs on the host: of a run with `log`, each operator there and each optimizer of
tables there.

They are this rank's, by the wall clock; in a lookup that exchanges rows they include the wait for
the others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_seconds: dict[str, float] = {}


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """Adds what the block takes to the time of `name`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        _seconds[name] = _seconds.get(name, 0.0) + time.perf_counter() - start


def taken(steps: int) -> dict[str, float]:
    """Milliseconds of a step, the mean of the last `steps`, by name; begins anew."""
    found = {name: round(seconds * 1000 / steps, 3) for name, seconds in _seconds.items()}
    _seconds.clear()
    return found
