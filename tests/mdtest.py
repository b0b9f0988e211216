"""A pytest plugin: the Markdown pages of specs/ and tests/diagnostics/ are tests. Loaded with `-p tests.mdtest`.

Every ```shard block is checked, planned where it says `ranks=N`, and must report what the next ```diagnostics block
lists, or nothing if there is none. `file=NAME` makes a block, or one of ```text, a file that other blocks of the page
can name. What a fence may say further: `strategy=NAME`; `set=PATH=VALUE`, several of them; `parse` to stop after the
syntax tree; `tune=N` to look for the best strategy on N ranks; `timed`
to ask for the hardware's speeds too; `cluster=NAME` to plan for that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.cost.hardware import with_speeds
from shardlang.diagnostics.diagnostic import Sink
from shardlang.source import Source

_FENCE = re.compile(r"^```(\S*)[ \t]*(.*)$")
_FOLDERS = ("specs", "diagnostics")
_WORDS = {"tune", "ranks", "strategy", "file", "set", "parse", "timed", "cluster"}


@dataclass
class Block:
    """A ```shard block: its line, options and text, and what it is to report."""

    line: int
    options: list[str]
    text: str
    expected: list[str] = field(default_factory=list)

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
            found[-1].expected = text.splitlines()
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


def reported(block: Block, folder: Path) -> list[str]:
    """What the compiler says of a block, as in a `diagnostics` block. Imports are looked for in `folder`."""
    sink = Sink()
    source = Source(str(folder / (block.option("file") or "program.shard")), block.text)
    if "parse" in block.options:
        driver.parse_source(source, sink)
    else:
        _check(source, block, sink)
    return [f"{d.severity.value}[{d.code}]: {d.message}".replace(f"{folder}/", "") for d in sink.found]


def _check(source: Source, block: Block, sink: Sink) -> None:
    program = driver.check_source(source, sink, block.overrides, block.option("strategy"))
    ranks = block.option("ranks")
    program = driver.with_cluster(program, block.option("cluster"), sink) if program is not None else None
    if program is None:
        return
    tune = block.option("tune")
    if tune is not None:
        driver.tune_program(program, driver.Asked(int(tune), block.option("strategy")), sink)
        return
    if "timed" in block.options:
        with_speeds(program, int(ranks or 1), sink)
    plan = driver.check_strategies(program, block.option("strategy"), int(ranks) if ranks else None, sink)
    if plan is not None and plan.program.training is not None:
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

    def runtest(self) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            for other in self.files:
                name = other.option("file")
                if name is not None:
                    (Path(folder) / name).write_text(other.text, "utf-8")
            found = reported(self.block, Path(folder))
        if found != self.block.expected:
            raise Mismatch(self.block, found)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, Mismatch):
            return str(excinfo.value)
        return str(excinfo.getrepr(style="short"))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.block.line - 1, f"{self.path.name}:{self.block.line}"


class Mismatch(Exception):
    """What was listed, and what was reported."""

    def __init__(self, block: Block, found: list[str]) -> None:
        listed, got = "\n  ".join(block.expected) or "nothing", "\n  ".join(found) or "nothing"
        super().__init__(f"line {block.line}\nlisted:\n  {listed}\nreported:\n  {got}")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Page | None:
    if file_path.suffix == ".md" and file_path.parent.name in _FOLDERS:
        return Page.from_parent(parent, path=file_path)
    return None
