"""A pytest plugin: the Markdown pages of specs/ and tests/diagnostics/ are tests. Loaded with `-p tests.mdtest`.

Every ```shard block is checked, planned where it says `ranks=N`, and must report what the next ```diagnostics block
shows, or nothing if there is none: all that a user sees, with places, labels and help. `python -m tests.mdtest` writes
these blocks anew; a person reads the difference. `file=NAME` makes a block, or one of ```text, a file that other
blocks of the page can name. What a fence may say further: `strategy=NAME`; `set=PATH=VALUE`, several of them;
`parse` to stop after the syntax tree; `tune=N` to look for the best strategy on N ranks; `timed` to ask for the
hardware's speeds too; `cluster=NAME` to plan for that one.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from shardlang import driver
from shardlang.cost.hardware import with_speeds
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.full import full
from shardlang.sources.source import Source

_FENCE = re.compile(r"^```(\S*)[ \t]*(.*)$")
_FOLDERS = ("specs", "diagnostics")
# Of more diagnostics a page shows the first and the last.
_MOST = 12
_WORDS = {"tune", "ranks", "strategy", "file", "set", "parse", "timed", "cluster"}


@dataclass
class Block:
    """A ```shard block: its line, options and text, and what it is to report, which stands at line `told`."""

    line: int
    options: list[str]
    text: str
    expected: str = ""
    told: int = 0

    def option(self, name: str) -> str | None:
        found = [o.partition("=")[2] for o in self.options if o.partition("=")[0] == name]
        return found[0] if found else None

    @property
    def overrides(self) -> dict[str, str]:
        pairs = [o.removeprefix("set=") for o in self.options if o.startswith("set=")]
        return {path: value for path, _, value in (pair.partition("=") for pair in pairs)}


def blocks(page: str) -> list[Block]:
    """The `shard` blocks of a page with what the `diagnostics` block after each lists.

    ValueError for a fence with unknown words.
    """
    found: list[Block] = []
    for line, language, words, text in fences(page):
        unknown = [w for w in words if w.partition("=")[0] not in _WORDS]
        if language == "shard" and unknown:
            raise ValueError(f"line {line}: unknown words after ```shard: {' '.join(unknown)}")
        if language == "shard":
            found.append(Block(line, words, text))
        elif language == "diagnostics" and not found:
            raise ValueError(f"line {line}: diagnostics of no program")
        elif language == "diagnostics":
            found[-1].expected, found[-1].told = text, line
    return found


def texts(page: str) -> list[Block]:
    """The `text` blocks of a page that are files: what a program names that is no program."""
    found = [Block(line, words, text) for line, language, words, text in fences(page) if language == "text"]
    return [block for block in found if block.option("file")]


def fences(page: str) -> Iterator[tuple[int, str, list[str], str]]:
    """Line, language, words and text of each fenced block. ValueError for one that is not closed."""
    opened: tuple[int, str, list[str]] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.splitlines(), 1):
        match = _FENCE.match(line)
        if match is None:
            lines.append(line)
        elif opened is None:
            opened, lines = (number, match[1], match[2].split()), []
        else:
            yield *opened, "".join(f"{text}\n" for text in lines)
            opened = None
    if opened is not None:
        raise ValueError(f"line {opened[0]}: the block is not closed")


def reported(block: Block, files: list[Block]) -> str:
    """What the compiler shows of a block, as in a `diagnostics` block, in a folder that has those of `files` that are
    files."""
    sink = Sink()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for other in files:
            name = other.option("file")
            if name is not None:
                Path(name).write_text(other.text, "utf-8")
        source = Source(block.option("file") or "program.shard", block.text)
        if "parse" in block.options:
            driver.parse_source(source, sink)
        else:
            _check(source, block, sink)
    parts = full(sink.found).removesuffix("\n").split("\n\n")
    return "\n\n".join(parts if len(parts) <= _MOST else [*parts[:2], "...", *parts[-2:]])


def _check(source: Source, block: Block, sink: Sink) -> None:
    given, ranks = (block.overrides, block.option("strategy")), int(block.option("ranks") or 0)
    tune = block.option("tune")
    if tune is not None or "timed" in block.options:
        program = driver.check_source(source, sink, *given, cluster=block.option("cluster"))
        if program is not None and tune is not None:
            driver.tune_program(program, driver.TuneRequest(int(tune), block.option("strategy")), sink)
        elif program is not None:
            with_speeds(program, ranks or 1, sink)
    if tune is None:
        _, plan = driver.check_whole(source, sink, *given, ranks or None, cluster=block.option("cluster"))
        if plan is not None:
            driver.emit_plan(plan, sink)


class Page(pytest.File):
    """A Markdown page: one test for each program in it, and for its diagnostics' code where it is a code's page."""

    def collect(self) -> Iterator[pytest.Item]:
        page = self.path.read_text("utf-8")
        found = blocks(page)
        for block in found:
            yield Program.from_parent(self, name=f"line {block.line}", block=block, files=[*found, *texts(page)])


class Program(pytest.Item):
    """One block: what is reported is what is listed."""

    def __init__(self, *, block: Block, files: list[Block], **rest: object) -> None:
        super().__init__(**rest)
        self.block, self.files = block, files

    # pytest-lsp 1.0.1 fails on an item that has none.
    funcargs: ClassVar[dict[str, object]] = {}

    def runtest(self) -> None:
        found = reported(self.block, self.files)
        if found != self.block.expected:
            raise Mismatch(self.block, found)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, Mismatch):
            return str(excinfo.value)
        return str(excinfo.getrepr(style="short"))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.block.line - 1, f"{self.path.name}:{self.block.line}"


class Mismatch(Exception):
    """What the page shows, and what was reported."""

    def __init__(self, block: Block, found: str) -> None:
        super().__init__(f"line {block.line}\nlisted:\n{block.expected or 'nothing'}\nreported:\n{found or 'nothing'}")


def blessed(page: str) -> str:
    """A page whose `diagnostics` blocks show what is reported now."""
    found, lines = blocks(page), page.splitlines()
    for block in reversed(found):
        if block.told:
            end = lines.index("```", block.told)
            lines[block.told : end] = reported(block, [*found, *texts(page)]).splitlines()
    return "".join(f"{line}\n" for line in lines)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Page | None:
    if file_path.suffix == ".md" and file_path.parent.name in _FOLDERS:
        return Page.from_parent(parent, path=file_path)
    return None


if __name__ == "__main__":
    for name in _FOLDERS:
        for page in sorted(Path(__file__).parents[1].glob(f"{'tests/' * (name == 'diagnostics')}{name}/*.md")):
            page.write_text(blessed(page.read_text("utf-8")), "utf-8")
