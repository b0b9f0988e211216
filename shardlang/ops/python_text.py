"""Texts and values of a program -> Python that they cannot leave: literals, comments, docstrings.

Whatever a program, a path or a command line holds gets into an emitted file through this page
alone, or as an identifier. The result has only characters that every reader of Python (its
tokenizer, `str.splitlines`, an editor) takes alike: no control character, no end of a line but
`\\n`, no mark that reorders what is shown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.terminal.display import one_line

QUOTE = '"'
_ESCAPES = {"\\": "\\\\", QUOTE: f"\\{QUOTE}", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

_BRACKETS = re.compile(r"\[[^\]]*\]")
_NO_BREAK = "\N{NO-BREAK SPACE}"  # one_line leaves none


def literal(value: object) -> str:
    """A static value as Python text: strings in double quotes, numbers, tuples and dicts."""
    match value:
        case str():
            plain = value.isprintable() and QUOTE not in value and "\\" not in value
            return f"{QUOTE}{value if plain else ''.join(map(_escaped, value))}{QUOTE}"
        case tuple() | list():
            numbers = all(type(item) is int for item in value)  # perhaps one for each of many ranks
            return tuple_text(list(map(repr, value)) if numbers else [literal(item) for item in value])
        case Mapping():
            return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
        case None | bool() | int() | float():
            return repr(value)
        case _:
            raise InternalError(f"a value of type {type(value).__name__} is no literal of an emitted program")


def comment(text: str, room: int | None = None) -> str:
    """`# text` on one line, whatever the text is; cut where it takes more than `room`."""
    line = f"# {one_line(text)}"
    return line if room is None or len(line) <= room else line[: room - 4].rstrip() + " ..."


def docstring(opening: str, *lines: str) -> str:
    """A docstring: a sentence, on several lines if long, no line of which ends within brackets; an
    empty line; then these lines."""
    whole = _BRACKETS.sub(lambda layout: layout[0].replace(" ", _NO_BREAK), one_line(opening))
    wrapped = textwrap.wrap(whole, 110, break_long_words=False, break_on_hyphens=False)
    first = [line.replace(_NO_BREAK, " ") for line in wrapped]
    each = [*first, *(("", *lines, "") if lines else ())]
    text = "\n".join("".join(_ESCAPES.get(c, c) for c in one_line(line)) for line in each)
    return f"{QUOTE * 3}{text}{QUOTE * 3}"


def emitted(text: str) -> str:
    """An emitted file, checked against the promises of this page: a failure is our fault."""
    lines = text.replace("\n", "")
    if not lines.isprintable():
        stray = next(c for c in lines if not c.isprintable())
        raise InternalError(f"an emitted file holds U+{ord(stray):04X} unescaped")
    return text


def tuple_text(items: Sequence[object]) -> str:
    """`()`, `(a,)`, `(a, b)`."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(map(str, items))})"


def _escaped(character: str) -> str:
    if character.isprintable():
        return _ESCAPES.get(character, character)
    return _ESCAPES.get(character) or character.encode("unicode_escape", "surrogatepass").decode()
