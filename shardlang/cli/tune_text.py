"""The answer of a search as text: the strategy, and a table of the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlang.cli.plan_view.columns import END, filled, table
from shardlang.cli.plan_view.screen import sizes
from shardlang.folds.flops import amounts
from shardlang.search.best_of_space import MARGIN
from shardlang.search.result import Answer, RankedStrategy, differing
from shardlang.terminal.display import duration, one_line, percent, rounded_up, width


def told(answer: Answer, room: int | None = None) -> str:
    """All of it, each line with its end. room: columns, where all but the strategy is to fit."""
    looked = f"{answer.looked:,} of {answer.total:,} points were looked at"
    if answer.gap:
        looked += f"; no other is faster by more than {percent(answer.gap)}"
        looked += ": `--budget` looks longer" * (answer.looked < answer.total)
    elif answer.looked < answer.total and not answer.stopped:
        looked += "; the others are slower by their bounds"
    best = answer.rows[0]
    text = [f"# {sizes(amounts(best.found.plan), best.prediction.step_s)}", *answer.text.splitlines()]
    last = [f"{looked}.", *_margin(answer)]
    if room is not None:
        text = [part for line in text for part in (_within(line, room) if line.startswith("#") else [line])]
        last = [part for line in last for part in _within(line, room)]
    return "".join(f"{one_line(line)}\n" for line in [*text, "", *_best(answer.rows, room or END), "", *last])


def _best(rows: Sequence[RankedStrategy], room: int) -> Iterator[str]:
    """A table of the best. Facts for which a line has no room are below it, the widest first."""
    first = rows[0].facts
    beside = ["mesh", *(what for what in first if what != "mesh" and len({row.facts[what] for row in rows}) > 1)]
    below = []
    while True:
        cells = [["", *beside, "step", "MFU", "memory"], *(_cells(at, row, beside) for at, row in enumerate(rows, 1))]
        head, *lines = table(cells, 1 << 16, range(len(beside) + 1, len(beside) + 4))
        if not beside or max(map(width, (head, *lines))) <= room:
            break
        widest = max(beside, key=lambda what: max(width(row.facts[what]) for row in rows))
        beside.remove(widest)
        below.append(widest)
    yield head
    for row, line in zip(rows, lines, strict=True):
        yield line
        for what in (what for what in first if what in below and row.facts[what] != "-"):
            yield from filled(f"{what} {row.facts[what]}".split(), room, "   ", "     ")


def _cells(at: int, row: RankedStrategy, facts: Sequence[str]) -> list[str]:
    of = row.prediction
    numbers = duration(of.step_s), percent(of.mfu), rounded_up(row.memory)
    return [str(at), *(row.facts[what] for what in facts), *numbers]


def _within(line: str, room: int) -> list[str]:
    """A comment or a sentence in lines that fit; all of a comment's are comments."""
    words = line.split()
    mark = f"{words.pop(0)} " if line.startswith("#") else ""
    return filled(words, room, mark, mark or "  ")


def _margin(answer: Answer) -> list[str]:
    """The price of memory that stays free."""
    best, spare = answer.rows[0], answer.spare
    if not answer.hardware.memory:
        return []
    if spare is None:
        return [f"No plan was found that leaves {percent(MARGIN)} of the memory free."]
    more = spare.prediction.step_s / best.prediction.step_s - 1
    if spare.found is best.found:
        return [f"It leaves more than {percent(MARGIN)} of the memory free."]
    differ = differing(spare.facts, best.facts)
    price = f"To leave {percent(MARGIN)} of the memory free costs {percent(more)}: {duration(spare.prediction.step_s)}"
    return [f"{price} a step, {rounded_up(spare.memory)}, with {'; '.join(differ)}."]
