"""Paths in the help of errors: how one is typed in a shell, and the name that was probably meant
where nothing is."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from shardlang.hints.nearest import nearest

# What paths are relative to, where nothing says another name.
OF_PROGRAM = "paths are relative to the program's file"


def typed(path: Path) -> str:
    """A path as a command takes it: from the current folder, if it lies there."""
    whole, here = Path(os.path.abspath(path)), Path.cwd()
    return shlex.quote(str(whole.relative_to(here) if whole.is_relative_to(here) else whole))


def beside(path: Path, suffix: str = "") -> str | None:
    """The name in the same folder, with this end or the path's, that the last part of a path may be
    a misspelling of."""
    try:
        others = [name for name in os.listdir(path.parent) if name.endswith(suffix or path.suffix)]
    except (OSError, ValueError):
        return None
    return path.name + suffix if path.name + suffix in others else nearest(path.name, others)


def instead(path: Path, otherwise: str = OF_PROGRAM) -> str:
    """The help where nothing is at a path: the name that was meant, of the file or of the first
    folder that is not there."""
    first = path
    while not os.path.isdir(first.parent) and first.parent != first:
        first = first.parent
    close = beside(first)
    if close is not None:
        return f"did you mean `{close}`?"
    lacking = "" if first == path else f"there is no folder {typed(first)}"
    return "; ".join(part for part in (lacking, otherwise) if part)
