"""Where the files that ship with the language are: beside the package in a wheel, one folder up in
a checkout.

Only finds paths; what is in them is read by those who ask."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def library_name(path: str) -> str:
    """`std.nn`, of the file of the library at a path; "" for other files."""
    home = folder("stdlib")
    file = Path(path)
    if file.suffix != ".shard" or not file.is_relative_to(home):
        return ""
    return ".".join(("std", *file.relative_to(home).with_suffix("").parts))


def folder(name: str, in_checkout: str | None = None) -> Path:
    """The folder `name` of the package (`stdlib`, `grammars`, `diagnostics/pages`), or
    `in_checkout` beside it.

    Raises FileNotFoundError where an installation has neither."""
    inside = _PACKAGE / name
    if inside.is_dir():
        return inside
    beside = _PACKAGE.parent / (in_checkout or name)
    if beside.is_dir():
        return beside
    raise FileNotFoundError(f"the installation of shardlang lacks its folder {inside}")
