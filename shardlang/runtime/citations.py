"""The lines of an emitted file -> the lines of the program that they come from, as its comments
cite them."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
