"""An open file: its text, what was found of it, and where that is after further edits. Old
hints stay until there are new ones."""

from __future__ import annotations

from dataclasses import field, replace
from functools import reduce
from pathlib import Path

from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.fault import fault_of_ours
from shardlang.editor.kept import Checked, Kept
from shardlang.editor.mistakes import ShownMistake, mistakes
from shardlang.editor.shown import Hint, ShownFigures, ShownLayouts
from shardlang.editor.text import TextEdit, edited, moved
from shardlang.frozen.records import dataclass
from shardlang.sources.files import LARGEST, Files, Unreadable, too_large
from shardlang.sources.source import Source, TextRange
from shardlang.syntax import ast


@dataclass(frozen=True, slots=True)
class Lens:
    """A line above a strategy. chosen: whether hints are of its plan."""

    at: int
    strategy: str
    text: str
    chosen: bool


@dataclass
class _Dated:
    """The edits since something was found of the text."""

    edits: list[TextEdit] = field(default_factory=list)

    def now(self, at: int) -> int:
        return reduce(moved, self.edits, at)


@dataclass
class OpenFile:
    """name: the path; strategy, ranks: those that are shown (None: the first, and those of its
    mesh). caller: of a file of the library, the layer that it is shown for, in words."""

    name: str
    text: str
    strategy: str | None = None
    ranks: int | None = None
    kept: Kept = field(default_factory=Kept)
    checked: Checked | None = None
    layouts: ShownLayouts | None = None
    caller: str = ""
    figures: dict[str, tuple[ShownFigures, _Dated]] = field(default_factory=dict)
    _mistakes: list[ShownMistake] = field(default_factory=list)
    _layouts_at: _Dated = field(default_factory=_Dated)
    _lenses: list[tuple[int, str]] = field(default_factory=list)
    _lenses_at: _Dated = field(default_factory=_Dated)

    def change(self, edit: TextEdit) -> None:
        self.text = edited(self.text, edit)
        for each in (self._layouts_at, self._lenses_at, *(at for _, at in self.figures.values())):
            each.edits.append(edit)

    def check(self, files: Files | None = None) -> None:
        """Checks the text, whatever the ranks are. A fault of ours is told, and the next text is
        checked anew. files: those that imports find; None as they are on the disk."""
        if len(self.text) > LARGEST:
            self._refuse(too_large())
            return
        try:
            self.checked = self.kept.check(Source(self.name, self.text), files)
        except Exception as fault:
            tree = ast.File(Source(self.name, self.text), ())
            self.kept, self.checked = Kept(), Checked(None, (fault_of_ours(fault, "shardc lsp"),), tree)
        tree = self.checked.tree
        written = [(each.name.span.start, each.name.text) for each in tree.strategies]
        if self.checked.program is not None or not self._lenses:
            self._lenses, self._lenses_at = written, _Dated()
            names = {name for _, name in written}
            self.figures = {name: found for name, found in self.figures.items() if name in names}
        self._mistakes = mistakes(self.checked.found, tree)

    def _refuse(self, reason: Unreadable) -> None:
        told = ShownMistake("", "error", f"`{Path(self.name).name}` {reason}: {reason.help}", 0, 0, (), ())
        self.checked = Checked(None, (), ast.File(Source(self.name, self.text), ()))
        self._mistakes, self._lenses, self.layouts = [told], [], None

    @property
    def imports(self) -> bool:
        """Whether the text imports other files than `std`, as far as it could be read."""
        items = self.checked.tree.items if self.checked is not None else ()
        return any(isinstance(item, ast.Use) and item.file for item in items)

    @property
    def program(self) -> CheckedProgram | None:
        """That of the text, if it was checked and has no mistake."""
        return self.checked.program if self.checked is not None else None

    @property
    def mistakes(self) -> list[ShownMistake]:
        """Those of the text as it was checked last, and, where it has none, of the plan that is
        shown; each once."""
        figures, at = self.figures.get(self.chosen, (None, _Dated()))
        planned = figures.mistakes if figures is not None and self.program is not None else ()
        now = (replace(each, start=at.now(each.start), end=at.now(each.end)) for each in planned)
        return list(dict.fromkeys([*self._mistakes, *now]))

    def take(self, found: object) -> None:
        """Takes what a plan of the text that was checked last has to show."""
        if isinstance(found, ShownLayouts):
            self.layouts, self._layouts_at = found, _Dated()
        elif isinstance(found, ShownFigures):
            self.figures[found.strategy] = found, _Dated()

    @property
    def hints(self) -> list[Hint]:
        if self.layouts is None:
            return []
        return [Hint(self._layouts_at.now(each.at), each.kind, each.text) for each in self.layouts.hints]

    def planned_text(self, at: int) -> tuple[TextRange, str] | None:
        """The innermost statement or parameter around a place that the plan has something to tell
        of."""
        now = self._layouts_at.now
        texts = self.layouts.texts.items() if self.layouts is not None else ()
        found = [((now(start), now(end)), text) for (start, end), text in texts]
        around = [(place, text) for place, text in found if place[0] <= at < place[1]]
        return min(around, key=lambda one: one[0][1] - one[0][0], default=None)

    @property
    def lenses(self) -> list[Lens]:
        """One for each strategy, also where nothing is known of it yet: so the text stays where it
        is."""
        now, chosen = self._lenses_at.now, self.chosen
        if self.caller:
            return [Lens(0, "", self.caller, True)]
        return [Lens(now(at), name, self._line(name), name == chosen) for at, name in self._lenses]

    @property
    def chosen(self) -> str:
        """The strategy that hints are of; "" without one."""
        names = [name for _, name in self._lenses]
        return self.strategy if self.strategy in names and self.strategy else next(iter(names), "")

    def _line(self, strategy: str) -> str:
        known, _ = self.figures.get(strategy, (None, None))
        return ".." if known is None else known.lens or "mistakes on these ranks"
