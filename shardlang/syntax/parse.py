"""Turns the text of a .shard file into its syntax tree, and reports what is no Shard (SH1xx).

Always gives a tree: after a mistake parsing goes on, and the tree holds what is sound. Names and
types are left to check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Source, Span, TextPart
from shardlang.syntax import ast
from shardlang.syntax.automaton import Automaton
from shardlang.syntax.prune import pruned
from shardlang.syntax.recover import MOST_MISTAKES, Recovery
from shardlang.syntax.tables import END, tables
from shardlang.syntax.tokens import ITEM, NEWLINE, Token, TokenStream, begins_item

_ITEM = re.compile(rf"\n(?={ITEM.pattern})")
_WORD = re.compile(r"\w+")
# So many items that went away are kept, for they may come back: a slip, and what it was taken for.
_GONE = 12


def parse(source: Source, sink: Sink) -> ast.File:
    """The file's tree: partial where `sink` got errors."""
    known = _library(source.name, source.text) if source.library else None
    return known or KeptTrees().parse(source, sink)


@lru_cache(16)
def _library(name: str, text: str) -> ast.File | None:
    """The tree of a file of the standard library, made once in a process; None if it has
    mistakes."""
    sink = Sink()
    made = KeptTrees().parse(Source(name, text, library=True), sink)
    return None if sink.found else made


def parse_expression(source: Source, sink: Sink) -> ast.Expr | None:
    """The tree of one expression, as a command line gives them; None where it is none."""
    tokens = TokenStream(source, tables())
    stream = iter(tokens)
    automaton = Automaton(tokens.tables, source, sink, "expression_only")
    found: ast.Expr | None = automaton.run(stream, Recovery(tokens, stream, sink))
    return None if sink.failed else found


def parse_rules(name: str, text: str) -> tuple[ast.Rule, ...] | None:
    """The rules that a text is made of, as they stand in a strategy; None where it is something
    else. `name`: of the text, in spans."""
    sink = Sink()
    file = parse(Source(name, f"strategy s {{\n  {text}\n}}\n"), sink)
    return file.strategies[0].rules if len(file.items) == 1 and not sink.failed else None


@dataclass(frozen=True, slots=True)
class ParsedPart:
    """An item, or a text between items, with what was made of it: items (None: the text holds too
    many mistakes), mistakes, and the text that is lost of it.

    text: from the beginning of its part. word: what begins the item behind it, "" at the end of the
    file. steps: mistakes that recovery counts. deep: whether nesting too deep was reported before,
    and after it."""

    part: TextPart
    text: str
    word: str
    items: tuple[ast.Item, ...] | None
    mistakes: tuple[Diagnostic, ...]
    lost: tuple[Span, ...]
    steps: int
    deep: tuple[bool, bool]


class KeptTrees:
    """The trees of a file, by the text of their items, for the next text of that file. An item that
    did not change, or that comes back soon, is the same node in both, at its new place.

    gone: those that the last texts have no more."""

    def __init__(self) -> None:
        self.segments: dict[str, list[ParsedPart]] = {}
        self.gone: list[ParsedPart] = []

    def parse(self, source: Source, sink: Sink) -> ast.File:
        """The file's tree: partial where `sink` got errors."""
        before, self.segments = self.segments, {}
        try:
            return self._file(source, sink, before)
        finally:
            left = (each for segments in before.values() for each in segments)
            self.gone = [*self.gone, *left][-_GONE:]

    def _file(self, source: Source, sink: Sink, before: dict[str, list[ParsedPart]]) -> ast.File:
        items, lost = list[ast.Item](), list[Span]()
        at, steps, deep = 0, 0, False
        while True:
            first = source.text[at : _next_item(source.text, at)]
            found = (
                _moved(before.get(first, []), source, at, steps, deep) or _moved(self.gone, source, at, steps, deep)
                or _segment(source, at, steps, deep)
            )  # fmt: skip
            self.segments.setdefault(first, []).append(found)
            for mistake in found.mistakes:
                sink.add(mistake)
            if found.items is None:
                return ast.File(source, (), (*lost, *found.lost, Span(source, 0, len(source.text))))
            items += found.items
            lost += found.lost
            at, steps, deep = at + len(found.text), steps + found.steps, found.deep[1]
            if not found.word:
                return ast.File(source, tuple(items), tuple(lost))


def _next_item(text: str, at: int) -> int:
    """Where the next item begins after a place; the end of the text without one."""
    found = _ITEM.search(text, at)
    return found.end() if found is not None else len(text)


def _word(text: str, at: int) -> str:
    """The word of an item."""
    found = _WORD.match(text, at)
    return found.group() if found is not None else ""


def _moved(known: list[ParsedPart], source: Source, at: int, steps: int, deep: bool) -> ParsedPart | None:
    """The segment that a text has at a place, moved there; None where none is known."""
    for number, each in enumerate(known):
        same = source.text.startswith(each.text, at) and each.deep[0] == deep
        end = at + len(each.text)
        follows = _word(source.text, end) == each.word and (not each.word or begins_item(source.text, ("", end, end)))
        if same and follows and (bool(each.word) or end == len(source.text)) and steps + each.steps <= MOST_MISTAKES:
            each.part.source, each.part.begin = source, at
            return known.pop(number)
    return None


def _segment(source: Source, at: int, steps: int, deep: bool) -> ParsedPart:
    """Parses from an item up to the next one that is no part of it."""
    part, sink = TextPart(source, at), Sink()
    tokens = TokenStream(part, tables())
    automaton = Automaton(tokens.tables, part, sink, "start")
    stream = _to_item(tokens, lambda: recovery.outside(automaton))
    recovery = Recovery(tokens, stream, sink, steps, alone=True)
    recovery.deep = deep
    items = automaton.run(stream, recovery)
    of_values = [m.primary.span for m in sink.found if m.primary is not None and m not in recovery.told]
    kept, lost = pruned(items or (), of_values)
    return ParsedPart(
        part, source.text[at : automaton.stop], _word(source.text, automaton.stop),
        items=None if items is None else kept, mistakes=tuple(sink.found), lost=(*recovery.lost, *lost),
        steps=recovery.mistakes - steps, deep=(deep, recovery.deep),
    )  # fmt: skip


def _to_item(tokens: TokenStream, outside: Callable[[], bool]) -> Iterator[Token]:
    """The tokens up to the next item that begins outside of blocks."""
    before = ""
    for token in tokens:
        if before == NEWLINE and begins_item(tokens.source.text, token) and outside():
            yield END, token[1], token[1]
            return
        yield token
        before = token[0]
