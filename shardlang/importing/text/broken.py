"""A statement that is too wide for a line -> the lines of it, where the language lets one end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Characters of a line behind its indentation: more are put on several lines, where they may; no
# line has more than MOST.
WIDE, MOST = 108, 114
# What the lines within a call or behind a pipe are moved to the right.
_INDENT = 2


def broken(head: str, text: str) -> str | None:
    """`head` and `text` on lines of at most WIDE characters: cut before a `|>`, or between the
    arguments of a call; where that does not do, one line of at most MOST. None if it is longer."""
    if len(head) + len(text) <= WIDE:
        return head + text
    steps = list(_parts(text, " |> "))
    found = _filled(head, steps, " |> ") if len(steps) > 1 else _called(head, text)
    return found or (head + text if len(head) + len(text) <= MOST else None)


def _called(head: str, text: str) -> str | None:
    """A call, its arguments on lines of their own."""
    name, opens, rest = text.partition("(")
    plain = re.fullmatch(r"[\w.\[\]]+", name) is not None
    if not opens or not plain or list(_parts(rest, ")")) != [rest[:-1], ""]:
        return None
    inner = _filled("", list(_parts(rest[:-1], ", ")), ", ")
    return None if inner is None else f"{head}{name}(\n{inner}\n)"


def _filled(head: str, parts: Sequence[str], between: str) -> str | None:
    """Parts on as few lines as there may be, with what is between them: a comma ends a line, a pipe
    begins one."""
    before, behind = ("", between.rstrip()) if between == ", " else (between.lstrip(), "")
    lines = [head + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(between) + len(part) <= WIDE - _INDENT:
            lines[-1] += between + part
        else:
            lines[-1] += behind
            lines.append(before + part)
    return None if max(map(len, lines)) > WIDE - _INDENT + len(behind) else "\n".join(lines)


def _parts(text: str, between: str) -> Iterator[str]:
    """The parts of a text between signs that no bracket holds."""
    depth, start, at = 0, 0, 0
    while at < len(text):
        if not depth and text.startswith(between, at):
            yield text[start:at]
            start = at = at + len(between)
            continue
        depth += (text[at] in "([") - (text[at] in ")]")
        at += 1
    yield text[start:]
