"""Turns a parsed file into its one canonical text: spaces, indentation and blank lines; every token
and comment stays.

Works on the tokens, with the tree to tell what `*`, `@`, `+` and `-` mean in each place, and where
no space stands between tokens: in selectors, layouts, signs, calls. So nothing is lost, and the
text parses to the same tree. Line breaks in brackets and before `|>` are the user's."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.syntax import ast
from shardlang.syntax.tables import END, tables
from shardlang.syntax.tokens import NEWLINE, TokenStream


@dataclass
class Tight:
    """`glued`: tokens with no space before; `sticky`: with none after; `called`: call brackets."""

    glued: set[int] = field(default_factory=set)
    sticky: set[int] = field(default_factory=set)
    called: set[int] = field(default_factory=set)

    def joined(self, before: int, after: int) -> bool:
        return before in self.sticky or after in self.glued


def tight_places(file: ast.File) -> Tight:
    """All such places of a file."""
    tight = Tight()
    for node in ast.nodes_of(file.items):
        _note(node, file.source.text, tight)
    return tight


def _note(node: Any, text: str, tight: Tight) -> None:
    match node:
        case ast.Segment():
            tight.glued.update(range(node.span.start + 1, node.span.end))
            tight.called.update(range(node.span.start + 1, node.span.end))
        case ast.Unary(op="-"):
            tight.sticky.add(text.index("-", node.span.start))
        case ast.DimFactor():
            tight.glued.update(range(node.dim.span.end, node.span.end))
            tight.sticky.update(range(node.dim.span.end, node.span.end))
            _inside_groups(text, node.dim.span.end, node.span.end, tight)
        case ast.TensorType():
            _type(node, text, tight)
        case ast.Call():
            tight.called.add(text.index("(", node.callee.span.end))
        case ast.Index() | ast.Pick():
            tight.called.add(text.index("[", node.value.span.end))
        case ast.Layer(count=count) if count is not None:
            tight.called.add(text.index("[", node.name.span.end))
        case ast.Model() | ast.Function() | ast.Operator() | ast.OwnSource() | ast.OwnSchedule() | ast.OwnOptimizer():
            tight.called.add(text.find("(", node.name.span.end))
        case ast.Forward():
            tight.called.add(text.index("(", node.span.start))
        case _:
            pass


def _type(node: ast.TensorType, text: str, tight: Tight) -> None:
    """The bracket touches the element type; `+` and `^` touch their axes."""
    bracket = text.index("[", node.span.start)
    if node.dtype is not None:
        tight.called.add(bracket)
    if node.pending or node.replicated:
        after = text.rindex("]", node.span.start, node.span.end)
        tight.sticky.update(i for i in range(after, node.span.end) if text[i] in "+^")


def _inside_groups(text: str, start: int, end: int, tight: Tight) -> None:
    """In `@(dp, cp)` a space follows the comma."""
    comma = text.find(",", start, end)
    if comma < 0:
        return
    opening = text.index("(", start)
    for places in (tight.glued, tight.sticky):
        places.difference_update(range(opening + 1, end))
    tight.called.add(opening)


INDENT = 2
_COMMENT = re.compile(r"#[^\n\r]*")
_OPENING = ("LPAR", "LSQB")
_CLOSING = ("RPAR", "RSQB")
_NO_SPACE_BEFORE = frozenset({"COMMA", "COLON", "DOT", "RANGE", "QUESTION", *_CLOSING})
_NO_SPACE_AFTER = frozenset({"DOT", "RANGE", *_OPENING})


def format_file(file: ast.File) -> str:
    """The canonical text. The file must have parsed without errors, else spacing is a guess."""
    text = file.source.text
    tokens = [token for token in TokenStream(file.source, tables()) if token[0] not in (NEWLINE, END)]
    writer = _Formatter(tight_places(file))
    end = 1 if text.startswith("\ufeff") else 0
    for kind, start, stop in tokens:
        writer.gap(text[end:start], kind)
        writer.token(kind, start, text[start:stop])
        end = stop
    writer.gap(text[end:], END)
    return writer.finished()


@dataclass
class _Open:
    """An open bracket or brace: where its content aligns, and the indentation of its line."""

    brace: bool
    column: int
    base: int


class _Formatter:
    def __init__(self, tight: Tight) -> None:
        self.tight = tight
        self.lines: list[str] = []
        self.line = ""  # sets what follows from it
        self.open: list[_Open] = []
        self.previous = ""
        self.previous_start = -1

    # --- the line that is being written, in parts: it may be as long as the file ---

    @property
    def line(self) -> str:
        return "".join(self.parts)

    @line.setter
    def line(self, text: str) -> None:
        self.parts, self.width = [text], len(text)
        content = text.lstrip()
        self.base, self.begun, self.comment = len(text) - len(content), bool(content), content.startswith("#")

    def _add(self, text: str) -> None:
        if not self.begun:
            self.base, self.begun = self.width, True
        self.parts.append(text)
        self.width += len(text)

    # --- between tokens -------------------------------------------------------

    def gap(self, between: str, kind: str) -> None:
        """Write what is between two tokens: comments, and line breaks that are kept or needed."""
        at = 0
        for comment in _COMMENT.finditer(between):
            self._comment(comment.group().rstrip(), between.count("\n", at, comment.start()))
            at = comment.end()
        breaks = between.count("\n", at)
        commented = at > 0
        if kind == END:
            return
        must = self.previous == "LBRACE" or (kind == "RBRACE")
        if must and self.previous == "LBRACE" and kind == "RBRACE" and not commented:
            return
        if breaks or commented or must:
            self._break(breaks, kind)

    def _comment(self, text: str, breaks: int) -> None:
        if self.line and breaks == 0:
            self.line = f"{self.line.rstrip()} {text}"
            return
        self._break(breaks, "COMMENT")
        self.line += text

    def _break(self, breaks: int, kind: str) -> None:
        """End the line, and begin one at the next indentation; at most one blank line is kept."""
        if self.line or self.lines:
            if self.line:
                self.lines.append(self.line.rstrip())
            wanted = breaks > 1 and self.previous != "LBRACE" and kind not in ("RBRACE", "PIPE") and self._outside()
            if wanted and self.lines and self.lines[-1] and not self.lines[-1].endswith("{"):
                self.lines.append("")
        if self.previous in _OPENING and self.open and not self.open[-1].brace:
            self.open[-1].column = self.open[-1].base + INDENT
        self.line = " " * self._indent(kind)

    def _outside(self) -> bool:
        return not self.open or self.open[-1].brace

    def _indent(self, kind: str) -> int:
        if not self.open:
            return INDENT if kind == "PIPE" else 0
        last = self.open[-1]
        if last.brace:
            inner = last.base + INDENT
            return last.base if kind == "RBRACE" else inner + INDENT if kind == "PIPE" else inner
        return last.base if kind in _CLOSING and last.column == last.base + INDENT else last.column

    # --- tokens ---------------------------------------------------------------

    def token(self, kind: str, start: int, text: str) -> None:
        if self.begun and not self.comment and self._spaced(kind, start):
            self._add(" ")
        if kind in ("RBRACE", *_CLOSING) and self.open:
            self.open.pop()
        self._add(text)
        if kind == "LBRACE":
            self.open.append(_Open(True, 0, self.open[-1].base + INDENT if self.open else 0))
        elif kind in _OPENING:
            self.open.append(_Open(False, self.width, self.base))
        self.previous, self.previous_start = kind, start

    def _spaced(self, kind: str, start: int) -> bool:
        """Whether a space stands before the token at `start`, on one line with the one before."""
        previous = self.previous
        if self.tight.joined(self.previous_start, start):
            return False
        if kind in _NO_SPACE_BEFORE or previous in _NO_SPACE_AFTER:
            return False
        if kind in _OPENING:
            return start not in self.tight.called
        return not (previous == "LBRACE" and kind == "RBRACE")

    def finished(self) -> str:
        if self.line.strip():
            self.lines.append(self.line.rstrip())
        while self.lines and not self.lines[-1]:
            self.lines.pop()
        return "".join(f"{line}\n" for line in self.lines)
