"""What the page asks of the language -> the answers, as JSON. Lines and columns are from 1, columns in
units of UTF-16, as the editor of the page has them.

It runs in the browser, in pyodide; `worker.js` calls `checked`, then `planned` until it gives nothing."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardlang.cli.reference import entry
from shardlang.editor.hovered import hovered
from shardlang.editor.mistakes import ShownMistake
from shardlang.editor.open_file import OpenFile
from shardlang.editor.planned import ranks_of, shown
from shardlang.editor.shown import ShownFigures
from shardlang.editor.text import TextEdit, TextPlace, offset_of, place_of
from shardlang.editor.words.complete import complete
from shardlang.editor.words.cursor import place_at
from shardlang.editor.words.names import NameTable, names_of
from shardlang.sources.files import Files
from shardlang.sources.source import Source

_BESIDE = re.compile(r"[\w-]+(\.[\w-]+)*\.shard")
# Layouts, then memory and seconds, then the reasons; what follows is of other strategies.
_PARTS = 3

gc.disable()  # nothing of a plan is garbage before it ends; `planned` collects


class OpenPage:
    """folder: where the program and the files that it may import are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = OpenFile(str(folder / "program.shard"), "")
        self.parts: Iterator[object] = iter(())
        self.taken: list[object] = []

    def take(self, asked: Mapping[str, Any]) -> None:
        for name, text in asked["files"].items():
            # A link may come from anybody: what it names lies beside the program, and nowhere else.
            if _BESIDE.fullmatch(name):
                (self.folder / name).write_text(text, "utf-8")
        self.file.change(_edit(self.file.text, asked["text"]))
        self.file.strategy, self.file.ranks = asked["strategy"], asked["ranks"]
        self.file.check()
        self.taken, self.parts = [], iter(())
        if self.file.program is not None and self.file.checked is not None:
            self.parts = shown(self.file.program, self.file.checked.tree, self.file.chosen or None, self.file.ranks)

    def plan(self) -> bool:
        """Takes the next part of the plan; False where there is none."""
        whole = len(self.taken) == _PARTS or (self.taken and isinstance(self.taken[0], ShownFigures))
        part = None if whole else next(self.parts, None)
        if part is None:
            gc.collect()
            return False
        self.taken.append(part)
        self.file.take(part)
        return True

    def names(self) -> NameTable:
        assert self.file.checked is not None
        return names_of(self.file.checked.tree, Files().load)

    def state(self) -> dict[str, Any]:
        program, lenses = self.file.program, self.file.lenses
        strategies = program.strategies if program is not None else ()
        chosen = next((each for each in strategies if each.name.text == self.file.chosen), None)
        return {
            "mistakes": [self._mistake(each) for each in self.file.mistakes],
            "hints": [{"at": self.place(each.at), "text": each.text} for each in self.file.hints],
            "strategies": [{"name": one.strategy, "text": one.text, "chosen": one.chosen} for one in lenses],
            "ranks": self.file.ranks or (ranks_of(program, chosen) if program is not None else None),
        }

    def _mistake(self, it: ShownMistake) -> dict[str, Any]:
        fixes = [{"title": fix.title, "edits": [self._change(each) for each in fix.edits]} for fix in it.fixes]
        related = [
            {"file": at.file, "own": at.file == self.file.name, "start": _counted(at.start), "end": _counted(at.end),
             "text": text}
            for at, text in it.related
        ]  # fmt: skip
        return {
            "code": it.code, "severity": it.severity, "text": it.text, "start": self.place(it.start),
            "end": self.place(it.end), "related": related, "fixes": fixes,
        }  # fmt: skip

    def _change(self, it: TextEdit) -> dict[str, Any]:
        return {"start": self.place(it.start), "end": self.place(it.end), "text": it.text}

    def place(self, at: int) -> tuple[int, int]:
        return _counted(place_of(self.file.text, at))

    def offset(self, line: int, column: int) -> int:
        return offset_of(self.file.text, TextPlace(line - 1, column - 1))


def _counted(at: TextPlace) -> tuple[int, int]:
    return at.line + 1, at.column + 1


def _edit(before: str, after: str) -> TextEdit:
    """The change from one text to the other: what both begin and end with stays."""
    start = _alike(before, after)
    same = _alike(before[start:][::-1], after[start:][::-1])
    return TextEdit(start, len(before) - same, after[start : len(after) - same])


def _alike(one: str, other: str) -> int:
    """The characters that both begin with."""
    differ = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


PAGE = OpenPage(Path("/program"))


def checked(asked: str) -> str:
    """asked: the text, the files beside it, the strategy and the ranks."""
    PAGE.take(json.loads(asked))
    return json.dumps(PAGE.state())


def planned() -> str | None:
    return json.dumps(PAGE.state()) if PAGE.plan() else None


def pointed(line: int, column: int) -> str:
    """What is told where one points."""
    found = hovered(PAGE.file, PAGE.names(), PAGE.offset(line, column), entry)
    if found is None:
        return "null"
    (start, end), text = found
    return json.dumps({"start": PAGE.place(start), "end": PAGE.place(end), "text": text})


def offered(line: int, column: int) -> str:
    """What may be written at a place."""
    table, at = PAGE.names(), PAGE.offset(line, column)
    place = place_at(Source(PAGE.file.name, PAGE.file.text), at)
    if place is None:
        return "[]"
    ends = {"start": PAGE.place(place.word.start), "end": PAGE.place(place.word.end)}
    return json.dumps([
        {**ends, "label": each.label, "kind": each.kind, "detail": each.detail, "doc": each.doc, "text": each.insert,
         "snippet": each.snippet}
        for each in complete(table, at, Files().load)
    ])  # fmt: skip
