"""grammars/shard.lark -> what may stand in each line that begins with a word: which words and names, after what.

Expressions, types and selectors are left to who asks: here each of them is one value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lark

from shardlang.syntax.tables import RESERVED

# What is one value of a line.
_VALUES = {"_expr", "_value", "type", "formals", "fields", "selectors"}


@dataclass(frozen=True, order=True)
class Piece:
    """Something in a line. kind: "word", "sign", "name", "names" (in round brackets, in any depth) or "value"; text:
    the word or the sign, or the rule of the grammar that has the names."""

    kind: str
    text: str = ""

    @property
    def label(self) -> str:
        return self.text if self.kind in ("word", "sign") else ""


@dataclass(frozen=True)
class Line:
    """after: what may follow the line's word, another word, a sign, or ("") anything else. block: the rule of the
    grammar for what its braces hold."""

    word: str
    block: str
    after: dict[str, set[Piece]]

    @property
    def words(self) -> list[str]:
        """All words of the line but the first."""
        return sorted({piece.text for pieces in self.after.values() for piece in pieces if piece.kind == "word"})


class Lines:
    """The lines of a grammar."""

    def __init__(self, grammar: str) -> None:
        made = lark.Lark(grammar, parser="lalr", start="start", maybe_placeholders=False)
        self.patterns = {terminal.name: terminal.pattern.value for terminal in made.terminals}
        self.words = {name: text for name, text in self.patterns.items() if text.isidentifier()}
        self._rules: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for rule in made.rules:
            self._rules[str(rule.origin.name)].append(tuple(str(symbol.name) for symbol in rule.expansion))

    def begun_in(self, *blocks: str) -> list[Line]:
        """The lines that a word begins in blocks of these rules."""
        found = {word for block in blocks for word in self._first_words(block)}
        return [self._line(word) for word in sorted(found.difference(RESERVED))]

    def blocks(self) -> set[str]:
        """The rules for what stands in braces, and for a whole file."""
        of_braces = (symbols[at + 1] for rows in self._rules.values() for symbols in rows for at in _braces(symbols))
        return {"start", *of_braces}.intersection(self._rules)

    def _first_words(self, rule: str) -> set[str]:
        waiting, seen, words = [rule], {rule}, set[str]()
        for each in waiting:
            for symbols in self._rules[each]:
                # A line break may come before the first line of a block.
                first = next((symbol for symbol in symbols if symbol != "_NL"), "")
                words |= {first}.intersection(self.words)
                waiting += [first] if first in self._rules and first not in seen else []
                seen.add(first)
        return words

    def _line(self, word: str) -> Line:
        heads = [(rule, row) for rule, rows in self._rules.items() for row in rows if row[:1] == (word,)]
        blocks = {row[at + 1] for _, row in heads for at in _braces(row)}
        after: dict[str, set[Piece]] = defaultdict(set)
        ends: dict[tuple[str, str], tuple[set[Piece], set[str]]] = defaultdict(lambda: (set(), set()))
        # Rules of lists refer to themselves: what they begin and end with is known once nothing more is found.
        size = -1
        while size != (size := sum(map(len, after.values())) + sum(len(a) + len(b) for a, b in ends.values())):
            for rule, row in heads:
                self._walk(row, rule, ends, after)
            for rule, owner in list(ends):
                for row in self._rules[rule]:
                    first, last = self._walk(row, owner, ends, after)
                    ends[rule, owner][0].update(first)
                    ends[rule, owner][1].update(last)
        return Line(self.words[word], next(iter(blocks), ""), dict(after))

    def _walk(self, row: Sequence[str], owner: str, ends: Any, after: Any) -> tuple[set[Piece], set[str]]:
        """What a row begins with, and the labels of what it ends with; fills in what follows what within it."""
        first: set[Piece] | None = None
        before: set[str] = set()
        for part in self._parts(row, owner):
            begins, stops = ({part}, {part.label}) if isinstance(part, Piece) else ends[part]
            for label in before:
                after[label].update(begins)
            first = begins if first is None else first
            before = stops
        return first or set(), before

    def _parts(self, row: Sequence[str], owner: str) -> Iterator[Piece | tuple[str, str]]:
        """The pieces of a row up to its braces; a rule is itself and the rule that owns its names."""
        at = 0
        while at < len(row) and row[at] != "LBRACE":
            symbol = row[at]
            if symbol in ("LPAR", "LSQB"):
                close = row.index({"LPAR": "RPAR", "LSQB": "RSQB"}[symbol], at)
                owners = {} if symbol == "LSQB" else dict.fromkeys(self._owners(row[at:close], owner))
                yield Piece("names", *owners) if len(owners) == 1 and None not in owners else Piece("value")
                at = close
            elif symbol in self._rules and symbol not in _VALUES:
                yield symbol, self._owner(symbol, owner)
            else:
                yield self._piece(symbol, owner)
            at += 1

    def _piece(self, symbol: str, owner: str) -> Piece:
        if symbol in self.words:
            return Piece("word", self.words[symbol])
        if symbol == "NAME":
            return Piece("name", owner)
        sign = symbol in self.patterns and symbol not in ("NUMBER", "STRING")
        return Piece("sign", self.patterns[symbol]) if sign else Piece("value")

    def _owner(self, symbol: str, owner: str) -> str:
        """Lists that lark names itself (`__use_star_1`) are shared by rules: their names are those of the rule."""
        return owner if symbol.startswith("__") else symbol

    def _owners(self, symbols: Sequence[str], owner: str) -> Iterator[str | None]:
        """The rules that own names among symbols, at any depth; None for an expression."""
        waiting = [(symbol, owner) for symbol in symbols]
        for symbol, of in waiting:
            if symbol in _VALUES:
                yield None
            elif symbol == "NAME":
                yield of
            inner = [(each, self._owner(symbol, of)) for row in self._rules.get(symbol, ()) for each in row]
            waiting += [each for each in inner if each not in waiting and symbol not in _VALUES]


def _braces(row: Sequence[str]) -> Iterator[int]:
    return (at for at, symbol in enumerate(row) if symbol == "LBRACE" and row[at + 1] != "_NL")
