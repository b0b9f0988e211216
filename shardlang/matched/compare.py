"""Lines of the plan and lines of the text -> the first place where they differ, if any."""

from __future__ import annotations

from itertools import zip_longest

from shardlang.frozen.records import dataclass
from shardlang.matched.lines import Again, Items, Line, Repeated, lines_of


@dataclass(frozen=True, slots=True)
class Difference:
    """A line of the plan, and one of the text in its place; None where one of them has nothing."""

    planned: Line | None
    text: Line | None
    why: str = ""


def difference(planned: Items, text: Items) -> Difference | None:
    """The first difference between two sequences of lines."""
    if planned == text:
        return None
    for one, other in zip_longest(planned, text):
        if one == other:
            continue
        if isinstance(one, Repeated) and isinstance(other, Repeated) and one.times != other.times:
            why = f"the plan has {one.times} layers in a row, the text {other.times}"
            return Difference(_first(one), _first(other), why)
        if type(one) is type(other) and not isinstance(one, Line):
            assert isinstance(one, (Repeated, Again)) and isinstance(other, (Repeated, Again))
            return difference(one.items, other.items)
        return Difference(_first(one), _first(other))
    return None


def _first(item: Line | Repeated | Again | None) -> Line | None:
    return item if isinstance(item, Line) or item is None else next(lines_of(item.items), None)
