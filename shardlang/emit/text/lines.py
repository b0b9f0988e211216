"""Lines of Python and their comments -> text as a careful engineer would lay it out.

A block is one statement of the user's program: a title that cites it, then its lines, their comments aligned.
Knows nothing of plans or operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field

from shardlang.python_text import comment
from shardlang.records import dataclass

WIDTH = 120
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Line:
    """One statement of Python and what is said of it (may be empty)."""

    code: str
    comment: str = ""


@dataclass(slots=True)
class Block:
    """`title` (without `#`; may be empty) and the lines below it."""

    title: str
    lines: list[Line] = field(default_factory=list)


def indented(text: str, depth: int = 1) -> str:
    """Each line that is not empty moved right by `depth` levels of four spaces."""
    return "\n".join("    " * depth + line if line else line for line in text.split("\n"))


def block_text(block: Block, depth: int = 1) -> str:
    """The block at `depth` levels of indentation, no newline at the end."""
    room = WIDTH - 4 * depth
    rows = [(_within(line.code, room), comment(line.comment) if line.comment else "") for line in block.lines]
    column = _comment_column(rows, room)
    texts = [comment(block.title, room)] if block.title else []
    for code, said in rows:
        texts.extend(_row(code, said, column, room))
    return indented("\n".join(texts), depth)


def _row(code: list[str], said: str, column: int, room: int) -> list[str]:
    """A row's lines; a comment that does not fit beside its code stands above it."""
    if not said:
        return code
    last = f"{code[-1]:<{column}}  {said}" if len(code) == 1 else f"{code[-1]}  {said}"
    if len(last) <= room:
        return [*code[:-1], last]
    return [f"{_lead(code[0])}{said}", *code]


def _comment_column(rows: Sequence[tuple[list[str], str]], room: int) -> int:
    """Where comments begin: after the longest one-line code that still leaves every such comment its place."""
    single = [(len(code[0]), len(said)) for code, said in rows if len(code) == 1 and said]
    fitting = [c for c, said in single if c + said + 2 <= room]
    return max(fitting, default=0)


def _lead(code: str) -> str:
    return code[: len(code) - len(code.lstrip())]


def _within(code: str, room: int) -> list[str]:
    """`_wrapped` of code that may be indented, as below `with`."""
    lead = _lead(code)
    return [lead + line for line in _wrapped(code[len(lead) :], room - len(lead))]


def _wrapped(code: str, room: int) -> list[str]:
    """`code` as one line, or with the arguments of its last outermost call broken over lines."""
    if len(code) <= room:
        return [code]
    span = _outermost(code)
    if span is None:
        return [code]
    start, end = span
    items = split_items(code[start + 1 : end])
    return [code[: start + 1], *_broken(items, room), code[end:]]


def _broken(items: Sequence[str], room: int) -> list[str]:
    """Items indented by four, as many on a line as fit; a comma after each, if there are several."""
    comma = "," if len(items) > 1 else ""
    lines: list[str] = []
    for item in items:
        text = f"{item}{comma}"
        if lines and len(lines[-1]) + len(text) + 5 <= room:
            lines[-1] += f" {text}"
        else:
            lines.extend(_wrapped(text, room - 4))
    return [f"    {line}" for line in lines]


def _outermost(code: str) -> tuple[int, int] | None:
    """The brackets of the last call at depth 0 that has arguments. Other brackets group or index: they stay."""
    depth, start, found = 0, -1, None
    for at, char in _outside_strings(code):
        if char in _OPEN:
            start = at if depth == 0 else start
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            call = code[start] == "(" and re.search(r"[\w\])]$", code[:start])
            found = (start, at) if depth == 0 and call and at > start + 1 else found
    return found


def split_items(text: str) -> list[str]:
    """`a, f(b, c), d` -> the items between the commas of depth 0."""
    items, depth, start = [], 0, 0
    for at, char in _outside_strings(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == "," and depth == 0:
            items.append(text[start:at].strip())
            start = at + 1
    return [*items, text[start:].strip()] if text[start:].strip() else items


def _outside_strings(text: str) -> Iterable[tuple[int, str]]:
    """Positions and characters that are not inside a string literal."""
    quote, escaped = "", False
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quote = char
        else:
            yield at, char


def call_text(name: str, arguments: Sequence[str], depth: int = 0) -> str:
    """`name(...)` on one line at `depth` levels of indentation where it fits, else broken as `_broken` breaks it."""
    flat = f"{name}({', '.join(arguments)})"
    if len(flat) + 4 * depth < WIDTH and "\n" not in flat:
        return flat
    inner = "\n".join(_broken(arguments, WIDTH - 4 * depth))
    return f"{name}(\n{inner}\n)"


def list_text(items: Sequence[str]) -> str:
    """A list, one item a line; `[]` when empty."""
    if not items:
        return "[]"
    inner = "\n".join(f"{item}," for item in items)
    return f"[\n{indented(inner)}\n]"
