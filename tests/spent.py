"""A limit on the time of a test's work, which says nothing of the machine's other work."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fails where what is done within takes longer, in processor seconds of this thread. Python does
    not collect meanwhile: it would look at all that the tests before have left."""
    collects = gc.isenabled()
    gc.disable()
    begun = time.thread_time()
    try:
        yield
        taken = time.thread_time() - begun
    finally:
        if collects:
            gc.enable()
    assert taken < seconds
