"""A condition -> what it gives, as soon as it is true: how tests wait for another process or thread.

No clock is looked at. What never comes is ended by pytest's own limit, which no machine reaches because it is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# pytest's own limit for a test, in seconds: nothing that a test measures is longer.
LIMIT = 300


def until(true: Callable[[], T], meanwhile: Callable[[], object] = lambda: True) -> T:
    """What `true` gives, once that is true; fails where `meanwhile` is not, as where the process has ended."""
    while not (found := true()):
        assert meanwhile()
        time.sleep(0.01)
    return found
