"""The lock of a file of operators: which of them have passed `shardc verify`, by hashes of what was
declared and of the Python that computes it.

`my_ops.lock` beside `my_ops.shard`; JSON, so that a review shows what was verified. Torch-free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from shardlang.frozen.records import dataclass


@dataclass(frozen=True)
class LockEntry:
    """An operator that passed: the hashes of its declaration and of its Python file."""

    declaration: str
    source: str


def digest(text: str) -> str:
    """The SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def versions() -> Mapping[str, str]:
    """The releases that a lock holds for: what was verified under another is no longer current."""
    found = {}
    for name in ("shardlang", "torch"):
        try:
            found[name] = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def read(text: str) -> Mapping[str, LockEntry]:
    """The operators that a lock says have passed, by name; none of a lock of other releases, or of
    a text that is no lock."""
    try:
        told = json.loads(text)
        if {name: told[name] for name in versions()} != versions():
            return {}
        return {name: LockEntry(str(o["declaration"]), str(o["source"])) for name, o in told["operators"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def written(passed: Mapping[str, LockEntry]) -> str:
    """The text of a lock, for the releases that are installed."""
    operators = {name: {"declaration": p.declaration, "source": p.source} for name, p in sorted(passed.items())}
    return json.dumps({**versions(), "operators": operators}, indent=2) + "\n"
