"""The programs that the tests of `editor/` go through: examples, the library, and the blocks of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.names import NameTable, names_of
from shardlang.sources.files import Files
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse
from tests import mdtest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.shard"))
LIBRARY = sorted((ROOT / "stdlib").glob("*.shard"))
TRANSFORMER = ROOT / "examples" / "transformer.shard"


def table(source: Source) -> NameTable:
    """The names of a text, with what it imports."""
    files = Files()
    files.add(source)
    return names_of(parse(source, Sink()), files.load)


def program(text: str, name: str = "program.shard") -> NameTable:
    return table(Source(name, text))


def at(text: str) -> tuple[str, int]:
    """A text without its `^`, and where that stood."""
    return text.replace("^", "", 1), text.index("^")


@cache
def files() -> tuple[Source, ...]:
    """Examples and the library."""
    return tuple(Source(str(path), path.read_text("utf-8")) for path in (*EXAMPLES, *LIBRARY))


def pages() -> Iterator[Source]:
    """The complete blocks of the pages in specs/."""
    for page in sorted((ROOT / "specs").glob("*.md")):
        for block in mdtest.blocks(page.read_text("utf-8")):
            yield Source(str(ROOT / "specs" / f"{page.stem}_{block.line}.shard"), block.text)
