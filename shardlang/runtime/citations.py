"""The lines of an emitted file -> the lines of the program that they come from, as its comments
cite them; and who watches its calls."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Of the user's files and of the library's (`std.nn:10`).
_CITED = re.compile(r"^\s*# ((?:\S+\.shard|\w+(?:\.\w+)+):\d+  .*)$")


def cited(lines: Sequence[str], at: int) -> str:
    """The line cited above line number `at` (from 0) of an emitted file, within its function; else
    empty."""
    for number in range(at, -1, -1):
        found = _CITED.match(lines[number])
        if found:
            return found[1]
        if lines[number].startswith("def "):
            break
    return ""


@contextmanager
def tracing(on_call: Callable[[FrameType, str, Any], Any]) -> Iterator[None]:
    """Python tells a function of its calls meanwhile: `sys.settrace`."""
    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)
