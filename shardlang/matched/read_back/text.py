"""One emitted file: the places of its lines, and the types that its comments tell of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.matched.lines import Local
from shardlang.sources.source import Source, Span

_TYPE = re.compile(r"(\w+)\[([^\]]*)\]  ")
_SIZE = re.compile(r"\s*# (\w+) = (\(.*\)\[mesh.*\.index\])$")
_RUN = re.compile(r"(\d+) x (\d+)")


@dataclass(frozen=True, eq=False)
class File:
    """Its name, text and tree; names: what the file itself defines, as far as it was read."""

    name: str
    text: str
    tree: ast.Module
    names: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> Source:
        return Source(self.name, self.text)

    @cached_property
    def rows(self) -> list[str]:
        return self.text.split("\n")

    def span(self, node: ast.stmt | ast.expr) -> Span:
        """The line that a node begins on."""
        start = self.source._starts[node.lineno - 1]
        line = self.rows[node.lineno - 1]
        return Span(self.source, start + len(line) - len(line.lstrip()), start + len(line))

    def told(self, node: ast.stmt, names: Mapping[str, Any]) -> list[Local]:
        """The types that the comment behind a statement tells of, as `f32[8, 16]  [batch@a,
        hidden]; i64[]`. names: of local sizes."""
        last, end = self.rows[(node.end_lineno or 0) - 1], node.end_col_offset or 0
        behind = last[end:] if last.isascii() else last.encode()[end:].decode()  # Python counts bytes
        found = filter(None, map(_TYPE.match, behind.strip().removeprefix("# ").split("; ")))
        return [Local(x[1], tuple([names[s] if s in names else int(s) for s in x[2].split(", ") if s])) for x in found]

    def sizes(self, node: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
        """The local sizes that comments of a function define, by name; `8 x 100` is a size so many
        times."""
        for found in filter(None, map(_SIZE.match, self.rows[node.lineno : node.end_lineno])):
            text = _RUN.sub(lambda run: ", ".join([run[1]] * int(run[2])), found[2])
            yield found[1], ast.parse(text, mode="eval").body
