"""The differences between two plans -> lines for a terminal: names, and a column for each plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from shardlang.cli.plan_view.columns import PlanLine, filled
from shardlang.terminal.display import duration, one_line, percent, size, width

Found = Mapping[str, Any]
# How many groups of values are shown without --full.
MOST = 12
_NOTHING = "-"


def lines(found: Found, room: int, full: bool) -> Iterator[PlanLine]:
    """The titles of the two plans, and all that differs."""
    columns = _Columns(room)
    heads = found["left"], found["right"]
    if found["equal"]:
        names = [one_line(" ".join(filter(None, (head["program"], head["strategy"])))) for head in heads]
        yield PlanLine(f"the two plans are equal: {' and '.join(names)}")
        return
    yield from columns.row("", *[_title(head, heads) for head in heads], kind="title")
    for row in found["settings"]:
        yield from columns.row(row["what"], *[_setting(row[side]) for side in ("left", "right")])
    yield from _part("predicted seconds of a step", columns, found["time"])
    yield from _part("memory of a rank, kept in a step", columns, found["memory"], size)
    yield from _part("sent by a rank in a step", columns, found["sent"], size, "over ")
    yield from _part("stages", columns, found["stages"], _stage)
    yield from _values(found["values"], columns, full)


class _Columns:
    """Three columns: names, left, right. A name that is too long has lines of its own."""

    def __init__(self, room: int) -> None:
        self.room, self.name = room, max(22, room // 5)
        self.side = (room - self.name - 4) // 2

    def row(self, name: str, *given: str, kind: str = "", margin: str = "") -> Iterator[PlanLine]:
        """A row, its name behind a margin."""
        names = filled(one_line(name).split(" "), self.room, margin, f"{margin}  ")
        if len(names) > 1 or width(names[0]) > self.name:
            yield from (PlanLine(line, kind) for line in names)
            names = []
        sides = [filled(one_line(text).split(" "), self.side, rest="  ") for text in given]
        for cells in zip_longest(names, *sides, fillvalue=""):
            widths = self.name, self.side, 0
            padded = (cell + " " * (wide - width(cell)) for cell, wide in zip(cells, widths, strict=True))
            yield PlanLine("  ".join(padded).rstrip(), kind)


def _title(head: Found, heads: Sequence[Found]) -> str:
    """The names of a plan in which the two differ."""
    names = [head[key] or "no strategy" for key in ("program", "strategy") if len({h[key] for h in heads}) > 1]
    return " ".join(names) or f"{head['ranks']:,} ranks"


def _setting(value: Any) -> str:
    if value is None:
        return _NOTHING
    return percent(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def _part(
    title: str, columns: _Columns, rows: Sequence[Found], text: Any = None, before: str = ""
) -> Iterator[PlanLine]:
    if rows:
        yield PlanLine("")
        yield PlanLine(title, "title")
    for row in rows:
        name = row["what"] if row["what"] in ("all", "peak") else f"{before}{row['what']}"
        shown = text or (percent if row["what"] == "MFU" else duration)
        sides = [_NOTHING if row[side] is None else shown(row[side]) for side in ("left", "right")]
        yield from columns.row(name, *sides, margin="  ")


def _stage(stage: Found) -> str:
    return f"{', '.join(stage['layers'])}: {size(stage['bytes'])}"


def _values(rows: Sequence[Found], columns: _Columns, full: bool) -> Iterator[PlanLine]:
    """The values, with the most that a rank sends in a step for one of them."""
    if not rows:
        return
    yield PlanLine("")
    yield PlanLine("values, with what a rank sends for one in a step, the largest difference first", "title")
    shown = rows if full else rows[:MOST]
    for row in shown:
        many = f" ({row['count']})" if row["count"] > 1 else ""
        name, sides = f"{', '.join(row['paths'])}{many}", (_form(row["left"]), _form(row["right"]))
        yield from columns.row(name, *sides, margin="  ")
    if len(rows) > len(shown):
        yield PlanLine(f"  ({len(rows) - len(shown)} more, which --full shows)")


def _form(form: Found | None) -> str:
    """`[a@dp, b], read as [a, b]: 1.05 MB, waits 1.20 ms`."""
    if form is None:
        return _NOTHING
    sends = form["forward_bytes"] + form["backward_bytes"]
    read = f", read as {' and '.join(form['read'])}" if form["read"] else ""
    costs = [size(sends)] if sends else []
    costs += [f"waits {duration(form['exposed_s'])}"] if form["exposed_s"] else []
    return f"{form['layout']}{read}{': ' * bool(costs)}{', '.join(costs)}"
