"""Names with `*`, each of which stands for the same on both sides of a line of a name map."""

from __future__ import annotations

import re
from functools import lru_cache

DELIMITER = re.compile(r"([.\[\]])")


@lru_cache(maxsize=4096)
def pattern(text: str) -> re.Pattern[str]:
    """A pattern for a name with `*`: each stands for anything without a dot or a bracket, and a
    part between these is tried once."""
    parts = [re.escape(part).replace(r"\*", r"([^.\[\]]+)") for part in DELIMITER.split(text)]
    return re.compile("".join(rf"(?>{part}(?![^.\[\]]))" if "(" in part else part for part in parts))


def renamed(name: str, given: str, wanted: str) -> str | None:
    """A name that `given` covers, as `wanted` has it; None where it does not cover it."""
    match = pattern(given).fullmatch(name)
    if match is None:
        return None
    return "".join(a + b for a, b in zip(wanted.split("*"), (*match.groups(), ""), strict=True))
