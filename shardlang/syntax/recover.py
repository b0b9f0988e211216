"""Reports a syntax mistake and brings the parser to where it can go on, so that each mistake is
reported once.

A mistake in a statement costs that statement: what is left of it, with the block it opens, is
skipped, and the stacks are cut back to the enclosing block. At file level all up to the next item
is skipped. An item keyword in column 0 always begins an item: the blocks still open there are
closed for the user. The words are in mistakes.py."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.hints.nearest import nearest
from shardlang.sources.source import Span
from shardlang.syntax.automaton import DEEPEST, Automaton
from shardlang.syntax.mistakes import MISTAKES
from shardlang.syntax.tables import END, Tables
from shardlang.syntax.tokens import NEWLINE, Token, TokenStream, begins_item

MOST_MISTAKES = 100
# What a misspelt keyword looks like: a word that cannot stand there, or a name that something else
# should follow.
_MAYBE_MISSPELT = ("SH101", "SH109", "SH111", "SH119")
# What to call groups of terminals in "X may stand here", the first that all of the group are
# allowed.
_GROUPS = (
    ("an expression", {"NAME", "NUMBER", "STRING", "LPAR"}),
    ("a member of the model", {"LAYER", "PARAM"}),
    ("an item such as `model`", {"STRATEGY", "TRAIN"}),
    ("a rule", {"SPLIT", "SHARD"}),
    ("a type", {"LSQB"}),
    ("a name", {"NAME"}),
    ("the end of the line", {NEWLINE}),
)


class Recovery:
    """The handler that an Automaton calls at a token that no rule allows. before: how many mistakes
    were reported of what stands before. alone: parsing ends at an item that closes blocks."""

    def __init__(
        self, tokens: TokenStream, stream: Iterator[Token], sink: Sink, before: int = 0, alone: bool = False
    ) -> None:
        self.tokens = tokens
        self.stream = stream
        self.sink = sink
        self.text = tokens.source.text
        self.mistakes = before
        self.alone = alone
        self.deep = False
        self.points = tokens.tables.points
        self.lost: list[Span] = []  # the text of what is in no tree
        self.told: list[Diagnostic] = []
        self.kept = 0  # up to where, before a mistake, the text is in the tree

    def __call__(self, automaton: Automaton, token: Token, too_deep: bool) -> Token | None:
        self.kept = token[1]
        found = self._recovered(automaton, token, too_deep)
        start, end = (0, len(self.text)) if found is None else (self.kept, found[1])
        self.lost.append(self._span(start, end))
        return found

    def _recovered(self, automaton: Automaton, token: Token, too_deep: bool) -> Token | None:
        self.mistakes += 1
        if self.mistakes > 1 and automaton.end_state == automaton.tables.ends["expression_only"]:
            return None  # a lone expression has no next statement to go on with
        if self.mistakes > MOST_MISTAKES:
            fact = f"more than {MOST_MISTAKES} mistakes: the rest is not read"
            self._report("SH120", fact, token, "mend the first ones")
            return None
        if too_deep:
            return self._too_deep(automaton, token)
        if bracket := self._lost_bracket(token):
            return self._close_bracket(automaton, token, bracket)
        ends = token[0] == END or begins_item(self.text, token)
        if ends and self._open_brace(automaton) is not None:
            return self._close_braces(automaton, token)
        self._explain(automaton, token)
        outside = self.outside(automaton)
        return self._resume(automaton, self._skip_to_item(token) if outside else self._skip_statement(token, True))

    def _too_deep(self, automaton: Automaton, token: Token) -> Token | None:
        """Leaves out a statement that nests too deep, or the content of its block. Reports once."""
        if not self.deep:
            self._report(
                "SH108", f"more than {DEEPEST} expressions or blocks within one another", token,
                "give the inner ones names",
            )  # fmt: skip
        self.deep = True
        self.mistakes -= 1
        size = len(automaton.states)
        token = self._skip_statement(token, False)
        self._cut(automaton)
        while len(automaton.states) == size and self.points.get(automaton.states[-1]) != "LBRACE" and size > 1:
            automaton.cut(1)
            size -= 1
        return self._resume(automaton, token)

    def _span(self, start: int, end: int) -> Span:
        begin = self.tokens.source.begin
        return Span(self.tokens.source, start - begin, end - begin)

    # --- saying what is wrong -------------------------------------------------

    def _report(self, code: str, message: str, token: Token, help: str) -> None:
        self.sink.report(code, message, self._span(token[1], token[2]), help=help)
        self.told.append(self.sink.found[-1])

    def _explain(self, automaton: Automaton, token: Token) -> None:
        found = self.text[token[1] : token[2]]
        before = self.text[automaton.previous[1] : automaton.previous[2]]
        if unreadable := _unreadable(found):
            help = "remove it, or write it in ASCII; comments and strings may hold any text"
            self._report("SH104", unreadable, token, help)
            return
        row = automaton.tables.actions[automaton.states[-1]]
        bracket = self.text[self.tokens.open[-1]] if self.tokens.open else ""
        mistake = next(m for m in MISTAKES if m.fits(found, before, bracket, row))
        if mistake.code in _MAYBE_MISSPELT and (wrong := self._misspelt(automaton, token)):
            word, place = wrong
            shown = self.text[place[1] : place[2]]
            self._report("SH101", f"`{shown}` is no word of the language", place, f"did you mean `{word}`?")
            return
        if not self.text.strip():
            self._report("SH109", "there is nothing here, where an expression should be", token, "write a value")
            return
        if mistake.at_before:
            token = automaton.previous
        elif token[0] == NEWLINE:
            token = (NEWLINE, automaton.previous[2], automaton.previous[2])
        words = {"found": found, "before": before.strip(), "expected": _expected(row, automaton.tables)}
        self._report(mistake.code, _fill(mistake.message, words), token, _fill(mistake.help, words))

    def _misspelt(self, automaton: Automaton, token: Token) -> tuple[str, Token] | None:
        """The intended keyword, and the word in its place: `token`, or the name before it."""
        tables, depth = automaton.tables, len(automaton.states) - 1
        if word := _near(self.text[token[1] : token[2]], tables.actions[automaton.states[-1]], tables):
            return word, token
        if depth == 0:
            return None
        start, end = automaton.starts[depth], automaton.ends[depth]
        word = _near(self.text[start:end], tables.actions[automaton.states[depth - 1]], tables)
        return (word, ("NAME", start, end)) if word else None

    # --- brackets and braces --------------------------------------------------

    def _lost_bracket(self, token: Token) -> int | None:
        """The place of a bracket that should have been closed before `token`."""
        if self.tokens.lost is not None and self.tokens.lost_at in (token[1], token[2]):
            return self.tokens.lost
        line = self.text.rfind("\n", 0, token[1]) + 1
        if not self.tokens.open or self.tokens.open[-1] >= line:
            return self.tokens.open[-1] if self.tokens.open and token[0] == END else None
        return self.tokens.open[-1] if not self.text[line : token[1]].strip() else None

    def _close_bracket(self, automaton: Automaton, token: Token, bracket: int) -> Token | None:
        """The statement ended before `token`, which may begin the next one."""
        shape = self.text[bracket]
        closing = ")" if shape == "(" else "]"
        place = ("", bracket, bracket + 1)
        self._report("SH103", f"this `{shape}` is not closed", place, f"write `{closing}` where it ends")
        self.tokens.open.clear()
        self.tokens.lost = None
        outside = self.outside(automaton)
        return self._resume(automaton, self._skip_to_item(token) if outside else token)

    def outside(self, automaton: Automaton) -> bool:
        """Whether no block is open."""
        return self._open_brace(automaton) is None

    def _open_brace(self, automaton: Automaton) -> int | None:
        """The place of the innermost brace still open."""
        closed = 0
        for depth in range(len(automaton.states) - 1, 0, -1):
            symbol = self.points.get(automaton.states[depth])
            if symbol == "LBRACE" and not closed:
                return automaton.starts[depth]
            closed += (symbol == "RBRACE") - (symbol == "LBRACE")
        return None

    def _close_braces(self, automaton: Automaton, token: Token) -> Token | None:
        """Close all open blocks before `token`, the end of the file or an item."""
        brace = self._open_brace(automaton)
        assert brace is not None
        help = "write `}` on a line of its own after the block"
        self._report("SH102", "this `{` is not closed", ("", brace, brace + 1), help)
        self.lost.append(self._span(brace, brace))  # more may have been meant to stand in it
        while self._open_brace(automaton) is not None:
            self._cut(automaton)
            closing = [("RBRACE", token[1], token[1]), (NEWLINE, token[1], token[1])]
            if not all(self._feed(automaton, missing) for missing in closing):
                self._cut(automaton)
                automaton.cut(1)
                self.kept = min(self.kept, automaton.ends[-1])
        return (END, token[1], token[1]) if self.alone else token

    def _feed(self, automaton: Automaton, token: Token) -> bool:
        """Take a token that the user left out. False where no rule allows it."""
        while True:
            step = automaton.tables.actions[automaton.states[-1]].get(token[0])
            if step is None or (step < 0 and not automaton.reduce(-1 - step)):
                return False
            if step >= 0:
                automaton.shift(step, token[0], token)
                return True

    # --- going on -------------------------------------------------------------

    def _cut(self, automaton: Automaton) -> None:
        """Drop the unfinished statement: back to a newline or open block, past closed blocks."""
        depth, closed = len(automaton.states), 0
        while depth > 1:
            symbol = self.points.get(automaton.states[depth - 1])
            if symbol is not None and symbol != "RBRACE" and not closed:
                break
            closed += (symbol == "RBRACE") - (symbol == "LBRACE")
            depth -= 1
        automaton.cut(len(automaton.states) - depth)
        self.kept = min(self.kept, automaton.ends[-1])

    def _resume(self, automaton: Automaton, token: Token) -> Token | None:
        """The token to go on with: a newline is dropped where one has just been taken."""
        self._cut(automaton)
        if token[0] == NEWLINE and self.points.get(automaton.states[-1]) == NEWLINE:
            return next(self.stream)
        return token

    def _skip_statement(self, token: Token, first: bool) -> Token:
        """The newline or closing brace that ends the statement of `token`, its blocks skipped."""
        braces = 0
        while token[0] != END and not (begins_item(self.text, token) and not first):
            if braces == 0 and token[0] in (NEWLINE, "RBRACE"):
                break
            braces += (token[0] == "LBRACE") - (token[0] == "RBRACE")
            token = next(self.stream)
            first = False
        return token

    def _skip_to_item(self, token: Token) -> Token:
        """The next item in column 0, or the end."""
        token = next(self.stream) if token[0] != END and not (begins_item(self.text, token) and token[1] > 0) else token
        while token[0] != END and not begins_item(self.text, token):
            token = next(self.stream)
        return token


def _fill(text: str, words: dict[str, str]) -> str:
    """`text` with `{found}` and the like replaced; other braces are Shard's and stay."""
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


def _unreadable(found: str) -> str | None:
    """The message about characters outside of ASCII, or invisible ones."""
    if not found or found.startswith('"') or (found.isascii() and (found.isprintable() or found.isspace())):
        return None
    name = unicodedata.name(found[0], "a control character").lower()
    shown = f"`{found[0]}`, " if found[0].isprintable() else ""
    return f"{shown}U+{ord(found[0]):04X} ({name}) is no letter or sign of the language"


def _near(found: str, row: dict[str, int], tables: Tables) -> str | None:
    """The keyword of those that `row` allows which `found` nearly is."""
    if not found.isidentifier() or found in tables.keywords:
        return None
    return nearest(found, [text for text, kind in tables.keywords.items() if kind in row])


def _expected(row: dict[str, int], tables: Tables) -> str:
    """The tokens that a state allows, in a few words."""
    for words, group in _GROUPS:
        if group <= set(row):
            return words
    texts = {kind: text for text, kind in (tables.symbols | tables.keywords).items()}
    shown = [f"`{texts[kind]}`" for kind in row if kind in texts][:4]
    return " or ".join(shown) or "a name"
