"""Statements of a plan -> hints behind their lines: where a layout changes, and what is
sent. At most 40 characters a line; all else is told where one points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from shardlang.editor.shown import Hint
from shardlang.terminal.display import size
from shardlang.views.statements import PlannedStatement

# Characters behind a line. VS Code shows 43, and cuts the rest.
ROOM = 40


def hints(found: Iterable[PlannedStatement]) -> tuple[Hint, ...]:
    """The hints of some statements, in the order of the text."""
    inorder = sorted(found, key=lambda one: one.place)
    return tuple(Hint(one.place[1], kind, text) for one in inorder for kind, text in _texts(one) if text)


def _texts(statement: PlannedStatement) -> Iterator[tuple[str, str]]:
    sent = _sent(statement, ROOM // 2)
    yield "layouts", _layout(statement, ROOM - len(sent) - 2 * bool(sent)) if statement.moves else ""
    yield "sent", sent


def _layout(statement: PlannedStatement, room: int) -> str:
    """The dims that are cut and what is pending: `batch@dp, heads@mp`; of several layouts the
    first."""
    cuts, more = statement.tensors[0].cuts, len(statement.tensors) - 1
    text = ", ".join(cuts) if cuts else "whole"
    ending = f" or {more} more" if more else ""
    if len(text) + len(ending) <= room:
        return text + ending
    kept = list(cuts)
    while kept and len(text) + len(ending) > room:
        kept.pop()
        text = ", ".join([*kept, ".."])
    return text + ending


def _sent(statement: PlannedStatement, room: int) -> str:
    """The bytes over the axes that most goes over, then over others, while there is room."""
    over = Counter[tuple[str, ...]]()
    for row in statement.sent:
        over[row.axes] += row.bytes
    text = ""
    for axes, count in over.most_common():
        more = f"{', ' if text else ''}{size(count)} over {'*'.join(axes)}"
        if text and len(text) + len(more) > room:
            return f"{text}, .."
        text += more
    return text
