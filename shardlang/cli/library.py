"""The `##` texts of the standard library: that of each library, which is what its file begins with,
and those of the models, functions, devices and clusters in it, with how they are written."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from shardlang.check.files.imports import LIBRARIES
from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.sources.files import Files
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse
from shardlang.syntax.words import Word

# Stands for a space at which no line ends.
_TIED = "\0"
Item = ast.Model | ast.Function | ast.Hardware


@cache
def libraries() -> Mapping[str, tuple[Word, Mapping[str, Word]]]:
    """Each library, and what it has, by name: the lines that import and use it, and its text."""
    return {name: _library(name) for name in LIBRARIES}


def _library(name: str) -> tuple[Word, Mapping[str, Word]]:
    source = Files().load("-", name, False)
    if not isinstance(source, Source):
        raise InternalError(f"the library `{name}` {source}")
    items = [item for item in parse(source, Sink()).items if isinstance(item, Item)]
    listed = ", ".join(f"`{item.name.text}`" for item in items)
    doc = f"{_text(source.text.splitlines())}\n\nIt has {listed}. `shardc explain {items[0].name.text}` tells of one."
    return Word(f"use {name}: {items[0].name.text}", doc), {item.name.text: _shipped(name, item) for item in items}


def _shipped(library: str, item: Item) -> Word:
    above = item.span.source.text[: item.span.start].splitlines()
    lines = [f"use {library}: {item.name.text}", *dict.fromkeys(_uses(item))]
    return Word("\n".join(lines), _text(above[::-1], -1))


def _uses(item: Item | ast.Member) -> Iterator[str]:
    """How something is written where it is used; of a model also its members and the `forward` of
    each case."""
    match item:
        case ast.Model():
            yield _head(item).removeprefix("model ")
            for member in item.members:
                yield from _uses(member)
        case ast.If():
            for member in (*item.then, *item.otherwise):
                yield from _uses(member)
        case ast.Layer() | ast.Tensor():
            yield f"  {item.span.text}"
        case ast.Function() | ast.Forward():
            yield f"{'  ' * isinstance(item, ast.Forward)}{_head(item).removeprefix('fn ')}"
        case ast.Hardware(keyword="cluster"):
            yield f"shardc plan FILE --ranks N --cluster {item.span.source.name}.{item.name.text}"


def _head(item: ast.Node) -> str:
    """A declaration without its body, in lines that end behind a comma."""
    parts = " ".join(item.span.text.partition("{")[0].split()).split(", ")
    whole = textwrap.fill(", ".join(part.replace(" ", _TIED) for part in parts), 76, subsequent_indent="    ")
    return whole.replace(_TIED, " ")


def _text(lines: Sequence[str], step: int = 1) -> str:
    """The text of the `##` lines that `lines` begin with, which a step of -1 turns round."""
    count = next((at for at, line in enumerate(lines) if not line.startswith("##")), len(lines))
    return "\n".join(line.removeprefix("##").strip() for line in lines[:count][::step])
