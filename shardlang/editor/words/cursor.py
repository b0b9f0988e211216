"""A text and an offset -> the place there: which blocks are open, what of the statement stands
before it, in which call it is, and which words the grammar has a place for.

It reads the tokens up to the offset alone, from the item on that it is in, so that a statement
which is not finished has a place too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Source, Span
from shardlang.syntax.automaton import Automaton
from shardlang.syntax.recover import Recovery
from shardlang.syntax.tables import END, Tables, tables
from shardlang.syntax.tokens import ITEM, NEWLINE, Token, TokenStream

# A token that no rule allows: at it the parser says what it would have allowed.
_CURSOR = "CURSOR"
_WORD = re.compile(r"[A-Za-z0-9_]*\Z")
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])([0-9][0-9_]*(?:\.[0-9_]+)?)([A-Za-z]*/?[A-Za-z]*)\Z")
_COMMENT = re.compile(r'(?:[^"#]|"(?:[^"\\]|\\.)*")*#')
# Of an item that is longer nothing is told: reading it up to the offset takes seconds.
LONGEST_ITEM = 100_000
_OPEN, _CLOSED = ("LPAR", "LSQB"), ("RPAR", "RSQB")


@dataclass(frozen=True, slots=True)
class OpenBracket:
    """A bracket that is not closed. callee: the texts before it, without blanks, where it is that
    of a call or an index: `blocks[0].up`; piped: `|>` comes before them. inside: the texts behind
    it, up to the offset, with what closed brackets hold left out."""

    shape: str
    callee: tuple[str, ...]
    piped: bool
    inside: tuple[str, ...]

    @property
    def arguments(self) -> tuple[tuple[str, ...], ...]:
        """The arguments so far; the last is the one at the offset."""
        found: list[tuple[str, ...]] = [()]
        for text in self.inside:
            found += [()] if text == "," else []
            found[-1] = found[-1] if text == "," else (*found[-1], text)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class CursorPlace:
    """word: what stands there already, up to the offset. blocks: the first words of the blocks
    around it, the innermost last. before: the texts of the statement before the word. brackets:
    those that are open, the innermost last. allowed: words that may stand there; name: whether a
    name may. owner: the path before a `.`, as a callee. unit: the number before a unit; quoted: it
    is within a string. start: where the statement begins."""

    word: Span
    blocks: tuple[str, ...]
    before: tuple[str, ...]
    brackets: tuple[OpenBracket, ...]
    allowed: tuple[str, ...]
    name: bool
    start: int
    owner: tuple[str, ...] = ()
    unit: str = ""
    quoted: bool = False

    @property
    def block(self) -> str:
        return self.blocks[-1] if self.blocks else ""

    @property
    def previous(self) -> str:
        return self.before[-1] if self.before else ""


def place_at(source: Source, offset: int) -> CursorPlace | None:
    """The place at an offset; None in a comment, or far within a long item."""
    head = source.text[: max(0, min(offset, len(source.text)))]
    begin = _item_start(head)
    if len(head) - begin > LONGEST_ITEM:
        return None
    match = _WORD.search(head, begin)
    start = match.start() if match is not None else len(head)
    number = _NUMBER.search(head, begin)
    if number is not None and number.start() < start + 1:
        start = number.start(2)
    tokens = list(TokenStream(Source(source.name, head[begin : number.start() if number else start]), tables()))[:-1]
    found = [(kind, begin + first, begin + end) for kind, first, end in tokens]
    quoted = bool(found) and found[-1][0] == "BAD" and head[found[-1][1]] == '"'
    if _COMMENT.match(head, head.rfind("\n") + 1):
        return None
    if quoted:
        found, start = found[:-1], found[-1][1]
    blocks, statement = _blocks(head, found)
    brackets = _brackets(head, statement)
    allowed, name = _allowed(source, head, begin, start) if number is None and not quoted else ((), False)
    before = tuple(head[first:end] for _, first, end in statement)
    return CursorPlace(
        Span(source, start, len(head)), blocks, before, brackets, allowed=allowed, name=name,
        start=statement[0][1] if statement else start,
        owner=_callee(head, statement[:-1])[0] if before[-1:] == (".",) else (),
        unit=number[1] if number is not None else "", quoted=quoted,
    )  # fmt: skip


def _item_start(head: str) -> int:
    """Where the item that the end of a text is in begins."""
    at = len(head)
    while at > 0:
        at = head.rfind("\n", 0, at) + 1
        if ITEM.match(head, at):
            return at
        at -= 1
    return 0


def _blocks(text: str, tokens: Sequence[Token]) -> tuple[tuple[str, ...], list[Token]]:
    """The first words of the open blocks, and the tokens of the statement that goes on."""
    blocks: list[str] = []
    statement: list[Token] = []
    for token in tokens:
        kind = token[0]
        if kind == "LBRACE":
            blocks.append(text[statement[0][1] : statement[0][2]] if statement else "")
        elif kind == "RBRACE" and blocks:
            blocks.pop()
        if kind in ("LBRACE", "RBRACE", NEWLINE):
            statement = []
        else:
            statement.append(token)
    return tuple(blocks), statement


def _brackets(text: str, tokens: Sequence[Token]) -> tuple[OpenBracket, ...]:
    """The brackets of a statement that are open at its end."""
    found: list[tuple[str, tuple[str, ...], bool, list[str]]] = []
    for at, (kind, start, end) in enumerate(tokens):
        written = text[start:end]
        if kind in _OPEN:
            callee, piped = _callee(text, tokens[:at])
            found.append((written, callee, piped, []))
        elif kind in _CLOSED and found:
            found.pop()
        elif found:
            found[-1][3].append(written)
    return tuple(OpenBracket(shape, callee, piped, tuple(inside)) for shape, callee, piped, inside in found)


def _callee(text: str, tokens: Sequence[Token]) -> tuple[tuple[str, ...], bool]:
    """The path that tokens end in, `blocks[0].up`, without indexes; and whether it is piped."""
    path: list[str] = []
    at = len(tokens) - 1
    while at >= 0:
        if path[-1:] != ["."] and path:
            break
        while at >= 0 and tokens[at][0] == "RSQB":
            at = _opening(tokens, at) - 1
        if at < 0 or not text[tokens[at][1] : tokens[at][2]].isidentifier():
            return (), False
        path.append(text[tokens[at][1] : tokens[at][2]])
        at -= 1
        if at >= 0 and text[tokens[at][1] : tokens[at][2]] == ".":
            path.append(".")
            at -= 1
    return tuple(reversed([part for part in path if part != "."])), at >= 0 and tokens[at][0] == "PIPE"


def _opening(tokens: Sequence[Token], at: int) -> int:
    """The place of the bracket that the one at a place closes."""
    depth = 0
    while at > 0:
        depth += (tokens[at][0] in _CLOSED) - (tokens[at][0] in _OPEN)
        if depth == 0:
            break
        at -= 1
    return at


# --- the grammar -----------------------------------------------------------------


def _allowed(source: Source, head: str, begin: int, start: int) -> tuple[tuple[str, ...], bool]:
    """The words that the grammar has a place for at `start`, and whether it has one for a name."""
    known = tables()
    tokens = TokenStream(Source(source.name, head[begin:start]), known)

    def stream() -> Iterator[Token]:
        for token in tokens:
            yield (_CURSOR, token[1], token[2]) if token[0] == END else token
        yield END, start, start

    states: list[int] = []
    given, sink = stream(), Sink()
    recover = Recovery(tokens, given, sink)

    def at_cursor(automaton: Automaton, token: Token, too_deep: bool) -> Token | None:
        if token[0] != _CURSOR:
            return recover(automaton, token, too_deep)
        states.extend(automaton.states)
        return None

    Automaton(known, tokens.source, sink, "start").run(given, at_cursor)
    words = tuple(text for text, kind in known.keywords.items() if _takes(states, kind, known))
    return words, _takes(states, "NAME", known)


def _takes(states: Sequence[int], kind: str, known: Tables) -> bool:
    """Whether a parser in these states goes on with a token."""
    stack = list(states)
    while stack:
        step = known.actions[stack[-1]].get(kind)
        if step is None:
            return False
        if step >= 0:
            return True
        production = known.productions[-1 - step]
        del stack[len(stack) - production.size :]
        stack.append(known.gotos[stack[-1]][production.target])
    return False
