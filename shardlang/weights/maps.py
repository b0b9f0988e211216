"""The name map that a user names, a file or one of the library -> its rules."""

from __future__ import annotations

from pathlib import Path

from shardlang.check.context import Context
from shardlang.check.program import NameMap
from shardlang.check.train.weight_names import read_names
from shardlang.diagnostics.diagnostic import Sink
from shardlang.errors import RunError
from shardlang.sources.files import Files, Unreadable, read_text
from shardlang.sources.source import Source


def name_map(given: str, sink: Sink) -> NameMap | None:
    """None after reports of its lines. RunError SH609 where it cannot be read."""
    library = given.startswith("std.") and not Path(given).exists()
    try:
        source = Files().load("", f"{given}.map", False) if library else Source(given, read_text(Path(given)))
    except Unreadable as reason:
        source = reason
    if isinstance(source, Unreadable):
        help = "the library has `std.gpt2` and `std.llama`" if library else source.help
        raise RunError("SH609", f"the name map {source}", file=Path(given), help=help)
    return read_names(source, Context(sink))
