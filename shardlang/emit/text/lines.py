"""Lines of Python and their comments -> text as a careful engineer would lay it out.

A block is one statement of the user's program: a title that cites it, then its lines, their
comments aligned. Knows nothing of plans or operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.ops.code import Code, around, used
from shardlang.ops.python_text import comment

WIDTH = 120


@dataclass(frozen=True, slots=True)
class Stmt:
    """One statement of Python, its comment (may be empty), and its indentation within its block."""

    code: str
    comment: str = ""
    depth: int = 0


@dataclass(slots=True)
class Titled:
    """`title` (without `#`; may be empty) and the lines below it."""

    title: str
    lines: list[Stmt] = field(default_factory=list)


def indented(text: str, depth: int = 1) -> str:
    """Each line that is not empty moved right by `depth` levels of four spaces."""
    return "\n".join("    " * depth + line if line else line for line in text.split("\n"))


def block_text(block: Titled, depth: int = 1) -> Code:
    """The block at `depth` levels of indentation, no newline at the end."""
    room = WIDTH - 4 * depth
    said = [f"  {comment(line.comment)}" if line.comment else "" for line in block.lines]
    rows = [_rows(*each, room) for each in zip(block.lines, said, strict=True)]
    alone = [(len(code[0]), room - len(text)) for code, text in zip(rows, said, strict=True) if text and len(code) == 1]
    column = min(max(c for c, _ in alone), *(last for _, last in alone)) if len(rows) > 1 and alone else 0
    texts = [comment(block.title, room)] if block.title else []
    for code, text in zip(rows, said, strict=True):
        last = code[-1].ljust(column) if text and len(code) == 1 else code[-1]
        texts += [*code[:-1], last + text]
    return Code(indented("\n".join(texts), depth), used(*(line.code for line in block.lines)))


def _rows(line: Stmt, said: str, room: int) -> list[str]:
    """The lines of one statement whose comment stands behind it."""
    lead = "    " * line.depth
    room, beside = room - len(lead), len(said)
    code = _wrapped(line.code, room, beside)
    if said and len(code) == 1 and len(code[0]) + beside > room:
        made, _, text = code[0].partition(" = ")
        code = [f"{made} = (", f"    {text}", ")"]
    return [lead + text for text in code]


def _wrapped(code: str, room: int, beside: int = 0) -> list[str]:
    """`code` as one line, or with the arguments of one of its outermost calls broken over lines.
    beside: what stands behind it."""
    if len(code) + beside <= room or not isinstance(code, Code) or not code.arguments:
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


def lines_text(name: str, arguments: Sequence[str]) -> str:
    """`name(...)`, an argument a line."""
    body = "\n".join(f"{argument}," for argument in arguments)
    return f"{name}(\n{indented(body)}\n)"


def list_text(items: Sequence[str]) -> str:
    """A list, one item a line; `[]` when empty."""
    if not items:
        return "[]"
    inner = "\n".join(f"{item}," for item in items)
    return f"[\n{indented(inner)}\n]"
