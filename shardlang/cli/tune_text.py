"""The answer of a search as text: the strategy, and a table of the best."""

from __future__ import annotations

from shardlang.cli.plan_view.columns import table
from shardlang.display import duration, one_line, percent, size
from shardlang.search.answer import Answer


def told(answer: Answer) -> str:
    """All of it, each line with its end."""
    first = answer.rows[0].facts
    same = [what for what in first if all(row.facts[what] == first[what] for row in answer.rows)]
    columns = ["mesh", *(what for what in first if what not in same and what != "mesh")]
    rows = [["", *columns, "step", "MFU", "memory"]]
    for at, row in enumerate(answer.rows, 1):
        of = row.prediction
        numbers = [duration(of.step_s), percent(of.mfu), size(row.memory, up=True)]
        rows.append([str(at), *(row.facts[what] for what in columns), *numbers])
    wide = 1 + max(range(len(columns)), key=lambda at: max(len(row[1 + at]) for row in rows))
    lines = table(rows, 100, range(len(rows[0]) - 3, len(rows[0])), wide)
    looked = f"{answer.looked:,} of {answer.total:,} points were looked at"
    if answer.gap:
        looked += f"; no other is faster by more than {percent(answer.gap)}"
        looked += ": `--budget` looks longer" * (answer.looked < answer.total)
    elif answer.looked < answer.total:
        looked += "; the others are slower by their bounds"
    return "".join(f"{one_line(line)}\n" for line in [*answer.text.splitlines(), "", *lines, "", f"{looked}."])
