"""Lines of Python and their comments -> text as a careful engineer would lay it out.

A block is one statement of the user's program: a title that cites it, then its lines, their
comments aligned. Knows nothing of plans or operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from shardlang.ops.code import Code, around, used
from shardlang.python_text import comment
from shardlang.records import dataclass

WIDTH = 120


@dataclass(frozen=True, slots=True)
class Line:
    """One statement of Python, its comment (may be empty), and its indentation within its block."""

    code: str
    comment: str = ""
    depth: int = 0


@dataclass(slots=True)
class Block:
    """`title` (without `#`; may be empty) and the lines below it."""

    title: str
    lines: list[Line] = field(default_factory=list)


def indented(text: str, depth: int = 1) -> str:
    """Each line that is not empty moved right by `depth` levels of four spaces."""
    return "\n".join("    " * depth + line if line else line for line in text.split("\n"))


def block_text(block: Block, depth: int = 1) -> Code:
    """The block at `depth` levels of indentation, no newline at the end."""
    room = WIDTH - 4 * depth
    rows = [(_rows(line, room), comment(line.comment) if line.comment else "") for line in block.lines]
    column = _comment_column(rows, room) if len(rows) > 1 else 0
    texts = [comment(block.title, room)] if block.title else []
    for line, (code, said) in zip(block.lines, rows, strict=True):
        texts.extend(_row(code, said, column, room, "    " * line.depth))
    return Code(indented("\n".join(texts), depth), used(*(line.code for line in block.lines)))


def _rows(line: Line, room: int) -> list[str]:
    return ["    " * line.depth + text for text in _wrapped(line.code, room - 4 * line.depth)]


def _row(code: list[str], said: str, column: int, room: int, lead: str) -> list[str]:
    """A row's lines; a comment that does not fit beside its code stands above it."""
    if not said:
        return code
    last = f"{code[-1]:<{column}}  {said}" if len(code) == 1 else f"{code[-1]}  {said}"
    if len(last) <= room:
        return [*code[:-1], last]
    return [f"{lead}{said}", *code]


def _comment_column(rows: Sequence[tuple[list[str], str]], room: int) -> int:
    """Where comments begin: after the longest one-line code that leaves room for them, but not so
    far that one no longer fits beside its code. After longer code they come at once."""
    single = [(len(code[0]), len(said)) for code, said in rows if len(code) == 1 and said]
    fitting = [(c, room - said - 2) for c, said in single if c + said + 2 <= room]
    return min(max((c for c, _ in fitting), default=0), min((last for _, last in fitting), default=0))


def _wrapped(code: str, room: int) -> list[str]:
    """`code` as one line, or with the arguments of one of its outermost calls broken over lines."""
    if len(code) <= room or not isinstance(code, Code) or not code.arguments:
        return [code]
    return [code.head, *_broken(code.arguments, room), code.tail]


def _broken(items: Sequence[str], room: int) -> list[str]:
    """Items indented by four, as many on a line as fit; a comma after each of several."""
    comma = "," if len(items) > 1 else ""
    lines: list[str] = []
    for item in items:
        text = around("", item, comma)
        if lines and len(lines[-1]) + len(text) + 5 <= room:
            lines[-1] += f" {text}"
        else:
            lines.extend(_wrapped(text, room - 4))
    return [f"    {line}" for line in lines]


def call_text(name: str, arguments: Sequence[str], depth: int = 0) -> str:
    """`name(...)` at `depth` levels of indentation, on one line if it fits, else as `_broken`."""
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
