"""Text for a terminal: words that fill lines, two columns that fit a width.

Nothing is cut: what does not fit goes on in the next line, never in the middle of a name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from shardlang.frozen.records import dataclass
from shardlang.terminal.display import one_line, width

# Where what is beside a text begins at most, and where numbers at the end of a line end at most.
COLUMN, END = 66, 100
_BRACKETS = {"(": ")", "[": "]"}


@dataclass(frozen=True)
class PlanLine:
    """A line of text, and what it is: "title", "sent", or "" for all others."""

    text: str
    kind: str = ""


def table(rows: Sequence[Sequence[str]], room: int, right: Collection[int] = (), wide: int = 0) -> list[str]:
    """Rows as lines with their columns below one another, two spaces apart. right: the columns of
    numbers, which end below one another. wide: the column that is broken at its spaces where a line
    has no room for all."""
    widths = [max(width(row[at]) for row in rows) for at in range(len(rows[0]))]
    others = sum(widths) - widths[wide] + 2 * (len(widths) - 1)
    widths[wide] = min(widths[wide], max(room - others, 12))
    lines = []
    for row in rows:
        cells = [filled(cell.split(" "), widths[at]) if at == wide else [cell] for at, cell in enumerate(row)]
        for part in range(max(map(len, cells))):
            texts = [cell[part] if part < len(cell) else "" for cell in cells]
            padded = [
                " " * (w - width(text)) + text if at in right else text + " " * (w - width(text))
                for at, (text, w) in enumerate(zip(texts, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
    return lines


def headed(rows: Sequence[Sequence[str]], room: int, right: Collection[int], wide: int = 0) -> Iterator[PlanLine]:
    """A blank line, and a table whose first row is its title."""
    yield PlanLine("")
    for at, line in enumerate(table(rows, room, right, wide)):
        yield PlanLine(line, "" if at else "title")


def paragraph(text: str, room: int, kind: str = "", first: str = "", rest: str = "  ") -> Iterator[PlanLine]:
    """A text of one line in lines that fit, as of `filled`."""
    return (PlanLine(line, kind) for line in filled(one_line(text).split(" "), room, first, rest))


def filled(words: Iterable[str], room: int, first: str = "", rest: str = "") -> list[str]:
    """Words with a space between, in lines of `room` cells that begin with `first`, and `rest` from
    the second on. A word that is longer than a line is broken behind a dot, a comma or a slash."""
    lines, line, empty = [], first, True
    for word in (piece for w in words for piece in _pieces(w, room - width(rest))):
        if not empty and width(line) + 1 + width(word) > room:
            lines.append(line)
            line, empty = rest, True
        line += word if empty else f" {word}"
        empty = False
    return [*lines, line]


def _pieces(word: str, room: int) -> Iterator[str]:
    while width(word) > room:
        ends = [m.end() for m in re.finditer(r"[.,/]", word) if m.end() <= room]
        if not ends:
            break
        yield word[: ends[-1]]
        word = word[ends[-1] :]
    yield word


def shortened(text: str, room: int) -> str | None:
    """A statement with what is in some brackets left out, `rearrange(q(x) -> [...])`, so that it
    fits; None where even that is too long. As little as possible is left out."""
    while width(text) > room:
        pairs = [(a, b) for a, b in _pairs(text) if text[a + 1 : b] not in ("", "...") and b - a > 4]
        if not pairs:
            return None
        fitting = [p for p in pairs if width(text) - (p[1] - p[0] - 4) <= room]
        a, b = min(fitting, key=lambda p: p[1] - p[0]) if fitting else max(pairs, key=lambda p: p[1] - p[0])
        text = f"{text[: a + 1]}...{text[b:]}"
    return text


def _pairs(text: str) -> list[tuple[int, int]]:
    """Where the brackets of a statement open and close, not those in quotes."""
    found, open_ones, quoted = [], [], False
    for at, character in enumerate(text):
        quoted ^= character == '"'
        if not quoted and character in _BRACKETS:
            open_ones.append(at)
        elif not quoted and open_ones and character == _BRACKETS[text[open_ones[-1]]]:
            found.append((open_ones.pop(), at))
    return found


def beside(margin: str, text: str, right: str, room: int) -> list[str]:
    """A text with another beside it: at half the width (less if wide), else right or below."""
    lines = filled(text.split(" "), room, margin, f"{margin}  ")
    if len(lines) > 1 or width(lines[-1]) + 2 + width(right) > room:
        end = filled(right.split(" "), room, "", f"{margin}    ")
        return [*lines, *(" " * (room - width(line)) + line if len(end) == 1 else line for line in end)]
    column = min(max(min(room // 2, COLUMN), width(lines[-1]) + 2), room - width(right))
    return [lines[-1] + " " * (column - width(lines[-1])) + right]
