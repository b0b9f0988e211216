"""Turns text into tokens: (kind, start, end), the kinds being terminals of grammars/shard.lark.

Newlines within brackets are dropped, and so are comments.
Text that no terminal matches becomes a BAD token; to say what is wrong with it is left to
recover.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.sources.source import Source, TextPart
from shardlang.syntax.tables import END, Tables

Token = tuple[str, int, int]

NEWLINE = "_NL"
BAD = "BAD"
ITEMS = ("use", "dim", "model", "fn", "operator", "strategy", "train", "device", "cluster")
# Items whose word begins a setting or a rule too, unless a name and a bracket come after it.
_DECLARED = ("source", "schedule", "optimizer")
# What begins an item where it stands in column 0, whatever came before it.
ITEM = re.compile(
    rf'(?:(?:{"|".join(ITEMS)})[ \t]+[A-Za-z_"]|train[ \t]*\{{|(?:{"|".join(_DECLARED)})[ \t]+[A-Za-z_]\w*[ \t]*\()'
)
_WRONG = re.compile(r'"[^\n]*|[^\x00-\x7f]+|.', re.DOTALL)


def begins_item(text: str, token: Token) -> bool:
    """Whether the token is an item's keyword in column 0."""
    start = token[1]
    return (start == 0 or text[start - 1] == "\n") and ITEM.match(text, start) is not None


@dataclass
class TokenStream:
    """The tokens of a source, or of its text from a place on, made on demand; `open` holds the
    places of open brackets."""

    source: Source | TextPart
    tables: Tables
    open: list[int] = field(default_factory=list)
    # The last bracket that a brace or an item cut off, and where that brace or item stands.
    lost: int | None = None
    lost_at: int = -1

    def __iter__(self) -> Iterator[Token]:
        text, match = self.source.text, self.tables.pattern.match
        keywords, symbols = self.tables.keywords, self.tables.symbols
        begin = self.source.begin
        at, end = (1 if begin == 0 and text.startswith("\ufeff") else begin), len(text)
        while at < end:
            found = match(text, at)
            if found is None:
                wrong = _WRONG.match(text, at)
                stop = wrong.end() if wrong else end
                yield BAD, at, stop
                at = stop
                continue
            kind, start, at = found.lastgroup, at, found.end()
            if kind == "NAME":
                yield keywords.get(found.group(), "NAME"), start, at
            elif kind == "SYMBOL":
                yield self._symbol(symbols[found.group()], start), start, at
            elif kind in ("NUMBER", "STRING"):
                yield kind, start, at
            elif kind == NEWLINE and self._ends_line(at):
                yield NEWLINE, start, at
        yield END, end, end

    def _symbol(self, kind: str, start: int) -> str:
        """Counts the brackets; a brace closes all of them, since no bracket may hold one."""
        if kind in ("LPAR", "LSQB"):
            self.open.append(start)
        elif kind in ("RPAR", "RSQB"):
            if self.open:
                self.open.pop()
        elif kind in ("LBRACE", "RBRACE"):
            self._lose(start)
        return kind

    def _lose(self, at: int) -> None:
        if self.open:
            self.lost, self.lost_at = self.open[-1], at
            self.open.clear()

    def _ends_line(self, after: int) -> bool:
        """Whether a newline with the next token at `after` is one to the grammar."""
        if self.open and self.source.text[after - 1] == "\n" and ITEM.match(self.source.text, after):
            self._lose(after)
        return not self.open
