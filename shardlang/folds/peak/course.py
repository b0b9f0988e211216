"""The memory of a pass, in which runs of equal layers are told once -> that of all layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from shardlang.folds.peak.ledger import NONE, OVER, Beside, Event, Ledger, PassPeak
from shardlang.frozen.records import dataclass
from shardlang.step.windows import Windows


@dataclass(frozen=True)
class Section:
    """The pieces of a window (-1: of none); what is there before and after."""

    window: int
    pieces: Sequence[PassPeak]
    before: Mapping[str, int]
    after: Mapping[str, int]

    def growth(self) -> Counter[str]:
        found = Counter(self.after)
        found.subtract(self.before)
        return found


def sections(ledger: Ledger) -> list[Section]:
    """All of a pass, which ends with an event."""
    found, pieces, window, before = list[Section](), list[PassPeak](), -1, dict[str, int]()
    for piece in ledger.pieces:
        pieces.append(piece)
        if piece.event.kind == OVER:
            found.append(Section(window, pieces, before, piece.parts))
            window, pieces, before = piece.event.step, [], dict(piece.parts)
    return found


def repeats(course: Sequence[Section], of: Windows) -> bool:
    """Whether each window comes once, and those of a run are the same as one beside them. The first
    of a loop may leave its operand where it is, which the others take over, and the last may give
    its result to another one."""
    if not of.runs:
        return True
    inside = [section for section in course if section.window >= 0]
    seen = {section.window: section for section in inside}
    if len(seen) < len(inside):
        return False
    rows = [[seen[window] for window in row if window in seen] for row in of.runs if row[0] in seen]
    return all(any(_shape(run) == _shape(other) for other in beside) for run, *beside in rows)


def _shape(section: Section) -> object:
    """A section but for where it is."""
    base, begin = sum(section.before.values()), min((p.event.step for p in section.pieces[:-1]), default=0)
    highs = [(p.most - base, p.when.doing) if p.most > NONE else () for p in section.pieces]
    events = [(p.total - base, p.event.kind, p.event.step - begin, *p.event[2:]) for p in section.pieces[:-1]]
    return highs, events, [(part, size) for part, size in section.growth().items() if size]


def follow(
    course: Sequence[Section], of: Windows, onward: bool, beside: Beside, happens: Callable[[Event, int], None],
    alike: bool,
) -> None:  # fmt: skip
    """The whole pass, with what is beside it. happens: takes each event, and the number of its
    layer within a run. alike: whether that adds the same in each layer of a run."""
    more, parts = 0, Counter[str]()
    for section in course:
        growth, before = section.growth(), Counter(beside.parts)
        size = growth.total()
        for turn, times in _followed(section, of, onward, beside, alike):
            beside.turn = turn
            for piece in section.pieces:
                beside.follow(piece, more, parts)
                if piece.event.kind != OVER:
                    happens(piece.event, turn)
            more += size * times
            for part in growth:
                parts[part] += growth[part] * times
            for part in beside.parts if times > 1 else ():
                beside.add(part, (beside.parts[part] - before[part]) * (times - 1))
        more -= size
        parts.subtract(growth)
    beside.own_parts = course[-1].after, parts


def _followed(section: Section, of: Windows, onward: bool, beside: Beside, alike: bool) -> list[tuple[int, int]]:
    """The layers of a section that are followed, each with how many it stands for. Where all add
    the same, memory only rises or only falls from layer to layer: the first and the last have the
    most."""
    turns = of.turns(section.window) if onward else of.turns(section.window)[::-1]
    if len(turns) > 1 and beside.ops is None and (alike or len(section.pieces) == 1):
        return [(turns[0], len(turns) - 1), (turns[-1], 1)]
    return [(turn, 1) for turn in turns]
