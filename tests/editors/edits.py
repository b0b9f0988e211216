"""`python -m tests.editors.edits --count 2000`: random edits of open files; after each the server shows what it would
show of a fresh text.

The files are the examples, the library and the blocks of the pages. Characters come and go, lines go, texts are pasted
from elsewhere, half of a file is deleted, and edits are taken back. After each edit the mistakes, with all that is said
of them, their places and their order, are those of `shardc check`, and the program is the same, with all places in it;
after some, also what is planned is the same. Then every prefix of `transformer.shard` has an answer.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.editor.kept import Checked
from shardlang.editor.mistakes import mistakes
from shardlang.editor.open_file import OpenFile
from shardlang.editor.planned import shown
from shardlang.editor.text import TextEdit
from shardlang.paths.patterns import Cuts
from shardlang.sources.source import Source, Span
from shardlang.types.dim import Dim
from tests.editor import texts

PUT = (
    *"x1 \n(){}[]e.,:=#\"@*", "batch", "\ndim a = 3\n", "\nstrategy ", "train {", "25MX", "\u00e9", "\n  layer a = ",
    "\n|> relu", "dp", " over ", "model", "\n}\n", "blocks[0]", "mp = 3",
)  # fmt: skip
# So many edits are made in a file before the next.
IN_A_ROW = 25
# One of so many edits deletes half of the text, or pastes; those up to HARMLESS put a line or another number in.
RARE, HARMLESS = 12, 7


class Different(AssertionError):
    """What is kept is not what is fresh."""


def programs() -> list[Source]:
    return [*texts.files(), *texts.pages()]


def edit(text: str, draw: random.Random, others: list[Source]) -> TextEdit:
    """The next edit of a text."""
    at, kind = draw.randrange(len(text) + 1), draw.randrange(RARE)
    if kind == 0:
        other = draw.choice(others).text
        start = draw.randrange(len(other) + 1)
        return TextEdit(at, at, other[start : start + draw.choice((20, 200, 800))])
    if kind == 1 and draw.random() < 0.3:
        return TextEdit(at, len(text), "") if draw.random() < 0.5 else TextEdit(0, at, "")
    if kind == 2:
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        return TextEdit(start, len(text) if end < 0 else end + 1, "")
    if kind < HARMLESS:
        numbers = list(re.finditer(r"\b\d+\b", text))
        if numbers and draw.random() < 0.5:
            number = draw.choice(numbers)
            return TextEdit(*number.span(), str(2 * int(number[0])))
        start = text.rfind("\n", 0, at) + 1
        return TextEdit(start, start, "# note\n")
    over = draw.choice((0, 0, 1, 1, 3, 12))
    return TextEdit(at, min(at + over, len(text)), draw.choice(PUT) if not over or draw.random() < 0.5 else "")


def fresh(source: Source) -> Checked:
    """What `shardc check` finds."""
    sink = Sink()

    def checked(runs: Cuts | None, sink: Sink) -> CheckedProgram | None:
        return driver.check_whole(source, sink, runs=runs)[0]

    program = driver.in_runs(checked, sink)
    return Checked(None if sink.failed else program, sink.found, driver.parse_source(source, Sink()))


class Told:
    """A value as texts and numbers, with the places in it, and dims by the order in which they come."""

    def __init__(self) -> None:
        self.dims: dict[Dim, int] = {}
        self.seen: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, str | int | float | bool | None):
            return value
        if isinstance(value, Span):
            return value.source.name, value.start, value.end, self.of(value.callers)
        if isinstance(value, Source):
            return value.name, value.text
        if isinstance(value, Dim):
            number = self.dims.setdefault(value, len(self.dims))
            return number, value.name, value.size, self.of(value.span), value.literal, value.home
        if id(value) not in self.seen:
            self.seen[id(value)] = value, self._made(value)
        return self.seen[id(value)][1]

    def _made(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return [(self.of(key), self.of(each)) for key, each in value.items()]
        if isinstance(value, tuple | list):
            return [self.of(each) for each in value]
        if isinstance(value, set | frozenset):
            return sorted(repr(self.of(each)) for each in value)
        if is_dataclass(value):
            return type(value).__name__, [self.of(getattr(value, f.name)) for f in fields(value) if f.name != "told"]
        return type(value).__name__ if callable(value) else repr(value)


def _mistake(found: Diagnostic) -> Any:
    return Told().of(found)


def require_same(kept: Checked, new: Checked) -> None:
    """Raises Different, with what differs first."""
    ours, theirs = [_mistake(each) for each in kept.found], [_mistake(each) for each in new.found]
    if ours != theirs:
        at = next((n for n, both in enumerate(zip(ours, theirs, strict=False)) if both[0] != both[1]), None)
        at = min(len(ours), len(theirs)) if at is None else at
        raise Different(f"mistake {at}:\n  kept  {ours[at : at + 1]}\n  fresh {theirs[at : at + 1]}")
    for name, mine, its in (("tree", kept.tree, new.tree), ("program", kept.program, new.program)):
        if Told().of(mine) != Told().of(its):
            raise Different(f"the {name} differs: {_first(Told().of(mine), Told().of(its))}")


def _first(ours: Any, theirs: Any) -> str:
    """The innermost pair that differs."""
    both = isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs)
    if both:
        for one, other in zip(ours, theirs, strict=True):
            if one != other:
                return _first(one, other)
    return f"kept {str(ours)[:400]}, fresh {str(theirs)[:400]}"


def require_same_plans(file: OpenFile, new: Checked) -> None:
    """What a plan has to show, of the kept program and of the fresh one."""
    assert file.program is not None and file.checked is not None and new.program is not None
    for number, (ours, theirs) in enumerate(
        zip(
            shown(file.program, file.checked.tree, file.strategy, file.ranks),
            shown(new.program, new.tree, file.strategy, file.ranks), strict=True,
        )
    ):  # fmt: skip
        if ours != theirs:
            raise Different(f"what is shown {number}th of the plan: {_first(Told().of(ours), Told().of(theirs))}")


def edited_files(count: int, seed: int, chosen: list[Source] | None = None) -> Iterator[tuple[OpenFile, str]]:
    """Open files after each of `count` edits, and what was done last."""
    draw, others = random.Random(seed), programs()
    examples = [source for source in others if "\ntrain {" in source.text]
    done = 0
    while done < count:
        source = draw.choice(chosen or (others if draw.random() < 0.5 else examples))
        file, undo = OpenFile(source.name, source.text), list[TextEdit]()
        file.check()
        for _ in range(min(IN_A_ROW, count - done)):
            if len(undo) >= draw.choice((1, 1, 2, 4)):
                next = undo.pop()
            else:
                next = edit(file.text, draw, others)
                undo.append(TextEdit(next.start, next.start + len(next.text), file.text[next.start : next.end]))
            file.change(next)
            file.check()
            done += 1
            yield file, f"{source.name} {next}"


def require_kept(file: OpenFile, plans: bool) -> bool:
    """Raises Different where the file does not show what a fresh text would. Whether plans were compared."""
    assert file.checked is not None
    new = fresh(Source(file.name, file.text))
    require_same(file.checked, new)
    if file.mistakes != mistakes(new.found, new.tree):
        raise Different("the mistakes that are shown")
    if plans and new.program is not None and new.program.training is not None:
        require_same_plans(file, new)
        return True
    return False


def require_answers(step: int) -> int:
    """Checks every `step`-th prefix of the transformer in one open file; how many there were."""
    text, file = texts.TRANSFORMER.read_text("utf-8"), OpenFile(str(texts.TRANSFORMER), "")
    ends = range(0, len(text) + 1, step)
    for end in ends:
        file.change(TextEdit(len(file.text), len(file.text), text[len(file.text) : end]))
        file.check()
        assert file.checked is not None
        if any(found.code == "SH900" for found in file.checked.found):
            raise Different(f"a fault of ours at prefix {end}: {file.checked.found}")
    return len(ends)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.editors.edits", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="edits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plans", type=int, default=20, help="one of so many texts without mistakes is planned")
    options = parser.parse_args()
    wrong, planned, clean = 0, 0, 0
    for number, (file, what) in enumerate(edited_files(options.count, options.seed), 1):
        clean += file.program is not None
        try:
            planned += require_kept(file, clean % options.plans == 0)
        except Different as different:
            wrong += 1
            place = Path(tempfile.gettempdir()) / f"edit_{options.seed}_{number}.shard"
            place.write_text(file.text, "utf-8")
            print(f"edit {number}, {what}: {different}\n  the text is in {place}", flush=True)
        if number % 200 == 0:
            print(f"{number} edits, {clean} texts without mistakes, {planned} plans, {wrong} differ", flush=True)
    print(f"{options.count} edits: {clean} texts without mistakes, {planned} plans compared, {wrong} differ")
    print(f"{require_answers(1)} prefixes of the transformer have an answer")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
