"""The text of an open file -> its checked program and its mistakes, as `shardc check` has them.

Nothing is done again for what did not change since the texts before: trees of items; the program,
while only strategies change; a strategy, while neither it nor the program does. All of it moves
with the edits, because a part of the text that is kept does (`sources/source.py:TextPart`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from itertools import islice

from shardlang.check.check import CheckedItems, check_items, tell
from shardlang.check.files.project import require_named
from shardlang.check.lost_text import lost_texts, without_following
from shardlang.check.model.generic import FineModels
from shardlang.check.program import CheckedProgram
from shardlang.check.train.settings import RESERVED
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.editor.graph_outline import outline
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import TOLD_ONCE, Cuts, SingleLayers, cut_as_asked
from shardlang.plan.resolve import resolve
from shardlang.sources.files import Files, Unreadable
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import KeptTrees

# So many texts are remembered apart from their strategies, and so many strategies of each: a slip
# is taken back soon.
_TEXTS, _STRATEGIES = 3, 24
# A mistake that names a line: it changes where lines are put before it.
_LINE = re.compile(r"\bline \d")
# A layer of an array, or a run of them.
_NUMBERED = re.compile(r"\[\d")


@dataclass(frozen=True, slots=True)
class Checked:
    """program: None after mistakes; tree: partial after mistakes of syntax."""

    program: CheckedProgram | None
    found: Sequence[Diagnostic]
    tree: ast.File


@dataclass(eq=False)
class _ReadFiles:
    """The files that checks of one text read, as they were: by who names them, and how."""

    texts: dict[tuple[str, str, bool], Source | Unreadable] = field(default_factory=dict)

    def load(self, importing: str, path: str, is_file: bool, files: Files) -> Source | Unreadable:
        found = self.texts.get((importing, path, is_file))
        if found is None:
            found = self.texts[importing, path, is_file] = files.load(importing, path, is_file)
        return found

    def holds(self, files: Files) -> bool:
        """Whether the files are still so."""
        return all(_said(files.load(*asked)) == _said(found) for asked, found in self.texts.items())


def _said(found: Source | Unreadable) -> tuple[str, ...]:
    if isinstance(found, Source):
        return found.name, found.text
    return str(found), found.brief, found.help


@dataclass(eq=False)
class _KeptProgram:
    """All that was checked with the same cuts. strategies: those that were resolved since, by their
    identity, with the schedules that they read, and their mistakes."""

    items: CheckedItems | SingleLayers
    strategies: dict[int, tuple[ast.Strategy, Mapping[str, str], Sink]] = field(default_factory=dict)

    @cached_property
    def outline(self) -> object:
        """The part of a program that strategies without ranks depend on; None where that is not
        known."""
        program = self.items.program if isinstance(self.items, CheckedItems) else None
        return outline(program) if program is not None and program.names is None else None

    def take_fine(self, before: _KeptProgram) -> None:
        """Takes the strategies without a mistake of another program, if they have none here."""
        fine = {at: kept for at, kept in before.strategies.items() if not kept[2].found}
        if fine and self.outline is not None and self.outline == before.outline:
            self.strategies.update(fine)

    def mistakes(self, strategy: ast.Strategy, program: CheckedProgram) -> Sink:
        schedules = {name: source.text for name, source in program.schedules.items()}
        kept = self.strategies.get(id(strategy))
        if kept is not None and kept[1] == schedules:
            return kept[2]
        resolve(program, strategy, None, found := Sink())
        if not _names_lines(found):
            self.strategies[id(strategy)] = strategy, schedules, found
            for old in list(self.strategies)[:-_STRATEGIES]:
                del self.strategies[old]
        return found


@dataclass(eq=False)
class _KeptItems:
    """All that is known of a text without what is in its strategies: of these items, and of
    this."""

    items: Sequence[ast.Item]
    besides: object
    fine: FineModels = field(default_factory=FineModels)
    read: _ReadFiles = field(default_factory=_ReadFiles)
    programs: dict[object, _KeptProgram] = field(default_factory=dict)

    def are(self, items: Sequence[ast.Item], besides: object) -> bool:
        same = len(items) == len(self.items) and all(a is b for a, b in zip(items, self.items, strict=True))
        return same and besides == self.besides


class Kept:
    """All that is kept of an open file from one text to the next."""

    def __init__(self) -> None:
        self._trees = KeptTrees()
        self._items: list[_KeptItems] = []  # the latest first
        self._cuts: Cuts = {}  # those of the text before

    def check(self, source: Source, files: Files | None = None) -> Checked:
        """As of a fresh check. Nothing that was found of the text before may be used any more.
        files: those that imports find; None for those on the disk."""
        sink, files = Sink(), files if files is not None else Files()
        tree = self._trees.parse(source, sink)
        files.add(source)
        items = self._known(tree, files)
        self._items = [items, *(each for each in self._items if each is not items)][:_TEXTS]
        text = _CheckedText(tree, files, items, sink.failed, self._cuts, next(iter(self._items[1:]), None))
        program, found = text.told_once()
        self._cuts = text.cuts
        for mistake in found.found:
            sink.add(mistake)
        return Checked(None if sink.failed else program, sink.found, tree)

    def reads(self, name: str) -> bool:
        """Whether the latest check read a file of this name besides its own text."""
        texts = self._items[0].read.texts.values() if self._items else ()
        return any(isinstance(found, Source) and found.name == name for found in texts)

    def _known(self, tree: ast.File, files: Files) -> _KeptItems:
        items = [item for item in tree.items if not isinstance(item, ast.Strategy)]
        lost = [(each.text, id(each.item)) for each in lost_texts((tree,)) if not isinstance(each.item, ast.Strategy)]
        besides = lost, _alone(tree)
        kept = (each for each in self._items if each.are(items, besides) and each.read.holds(files))
        return next(kept, None) or _KeptItems(items, besides, self._fine(items))

    def _fine(self, items: Sequence[ast.Item]) -> FineModels:
        """The models that were fine in a text with the same items but for `train`."""
        models = _without_train(items)
        kept = (each.fine for each in self._items if _without_train(each.items) == models)
        return next(kept, FineModels())


def _without_train(items: Sequence[ast.Item]) -> list[int]:
    return [id(item) for item in items if not isinstance(item, ast.Train)]


def _alone(tree: ast.File) -> list[str]:
    """The names of `train` that stand nowhere else: they are probably meant as settings."""
    settings = (s for item in tree.items if isinstance(item, ast.Train) for s in item.settings)
    names = {name.text for s in settings for name in s.names}.difference(RESERVED)
    places = {name: re.finditer(rf"\b{name}\b", tree.source.text) for name in sorted(names)}
    return [name for name, found in places.items() if len(list(islice(found, 2))) == 1]


def _texts(found: Diagnostic) -> str:
    """All that a mistake says."""
    labels = (found.primary, *found.labels) if found.primary is not None else found.labels
    return "\n".join((found.message, *found.notes, *found.help, *(label.text for label in labels)))


def _names_lines(found: Sink) -> bool:
    """Whether a mistake says something else after lines are put before it."""
    return any(_LINE.search(_texts(mistake)) for mistake in found.found)


def _names_layers(found: Diagnostic) -> bool:
    """Whether a mistake may say something else where each layer is told."""
    return found.code not in TOLD_ONCE and _NUMBERED.search(_texts(found)) is not None


@dataclass(eq=False)
class _CheckedText:
    """A text being checked. unread: whether it has mistakes of syntax. cuts: those of the text
    before, and then its own. before: what is known of the text before."""

    tree: ast.File
    files: Files
    items: _KeptItems
    unread: bool
    cuts: Cuts
    before: _KeptItems | None

    def told_once(self) -> tuple[CheckedProgram | None, Sink]:
        """The program with runs of equal layers told once, if it can be, and all mistakes of it."""
        if self.cuts and frozenset() not in self.items.programs:  # a check less where they are asked for again
            with suppress(SingleLayers):
                return self._attempt(self.cuts)
        self.cuts = {}
        return cut_as_asked(self._attempt) or self._whole(None)[:2]

    def _attempt(self, cuts: Cuts) -> tuple[CheckedProgram | None, Sink]:
        program, found, in_runs = self._whole(cuts)
        if in_runs and any(map(_names_layers, found.found)):
            raise SingleLayers
        self.cuts = cuts
        return program, found

    def _whole(self, cuts: Cuts | None) -> tuple[CheckedProgram | None, Sink, bool]:
        """With strategies; and whether runs are told once."""
        program, found, kept = self._without_strategies(cuts)
        of_strategies = Sink()
        for strategy in program.strategies if program is not None else ():
            for mistake in kept.mistakes(strategy, program).found if program is not None else ():
                of_strategies.add(mistake)
        without_following(of_strategies, lost_texts((self.tree,)), found)
        return program, found, isinstance(kept.items, CheckedItems) and kept.items.in_runs

    def _without_strategies(self, cuts: Cuts | None) -> tuple[CheckedProgram | None, Sink, _KeptProgram]:
        kept, found = self._kept(cuts), Sink()
        assert isinstance(kept.items, CheckedItems)
        program = tell(kept.items, self.tree, found, self._load)
        if program is not None and not self.unread and not found.failed:
            require_named(self.tree.source, program, found)
        return replace(program, told=self._told) if program is not None else None, found, kept

    def _told(self, cuts: Cuts | None) -> CheckedProgram | None:
        """As `CheckedProgram.told`."""
        program, found, _ = self._without_strategies(cuts)
        return None if found.failed else program

    def _kept(self, cuts: Cuts | None) -> _KeptProgram:
        programs, key = self.items.programs, frozenset(cuts.items()) if cuts is not None else None
        kept = programs.get(key)
        if kept is None:
            kept = _KeptProgram(self._checked(cuts))
            if not isinstance(kept.items, CheckedItems) or not _names_lines(kept.items.found):
                programs[key] = kept
            if self.before is not None and key in self.before.programs:
                kept.take_fine(self.before.programs[key])
        if isinstance(kept.items, SingleLayers):
            raise SingleLayers(kept.items.cuts)
        return kept

    def _checked(self, cuts: Cuts | None) -> CheckedItems | SingleLayers:
        try:
            return check_items(self.tree, self._load, {}, cuts, self.items.fine)
        except SingleLayers as asked:
            return SingleLayers(asked.cuts)

    def _load(self, importing: str, path: str, is_file: bool) -> Source | Unreadable:
        return self.items.read.load(importing, path, is_file, self.files)
