"""The programs that the tests of `editor/` go through: examples, the library, and the blocks of the pages."""

from __future__ import annotations

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
    return names_of(parse(source, Sink()), beside(source).load)


def beside(source: Source) -> Files:
    """The files of a text: itself, and the others of its page."""
    files = Files()
    for each in (*_of_page(source.name.rpartition("/")[0]), source):
        files.add(each)
    return files


@cache
def _of_page(folder: str) -> tuple[Source, ...]:
    if not folder.startswith(f"{ROOT}/specs/"):
        return ()
    return tuple(each for each in pages() if each.name.startswith(f"{folder}/") and not each.name[-7].isdigit())


def program(text: str, name: str = "program.shard") -> NameTable:
    return table(Source(name, text))


def at(text: str) -> tuple[str, int]:
    """A text without its `^`, and where that stood."""
    return text.replace("^", "", 1), text.index("^")


@cache
def files() -> tuple[Source, ...]:
    """Examples and the library."""
    return tuple(Source(str(path), path.read_text("utf-8")) for path in (*EXAMPLES, *LIBRARY))


@cache
def pages() -> tuple[Source, ...]:
    """The complete blocks of the pages in specs/, each page in a folder of its own."""
    found = []
    for page in sorted((ROOT / "specs").glob("*.md")):
        for block in mdtest.blocks(page.read_text("utf-8")):
            name = block.option("file") or f"{block.line}.shard"
            found.append(Source(str(page.with_suffix("") / name), block.text))
    return tuple(found)
