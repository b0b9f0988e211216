"""An open file of an editor: it is checked as soon as what has come is read, and planned when keys
pause. The next change ends what works for the text before it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from lsprotocol import types as lsp

from shardlang.editor.open_file import OpenFile
from shardlang.editor.shown import LayerName
from shardlang.editor.text import TextEdit
from shardlang.lsp import converted
from shardlang.lsp.child import PlanningProcess
from shardlang.sources.files import Files
from shardlang.sources.resources import library_name

# Seconds without a change after which a plan is made.
QUIET = 0.05


class Session:
    """files: those that imports find. tell: is called whenever there is something new to show."""

    def __init__(self, file: OpenFile, version: int, files: Callable[[], Files], tell: Callable[[], None]) -> None:
        self.file, self.version, self.files, self.tell = file, version, files, tell
        self._stale = True
        # Of a file of the library the program that it is shown for, and the layer there; and back.
        self._caller: tuple[Session, LayerName] | None = None
        self._called: list[Session] = []
        self.closed = False
        self._child, self._pages = PlanningProcess(), PlanningProcess()
        self._timer: asyncio.TimerHandle | None = None
        self.soon()

    def change(self, version: int, changes: Iterable[lsp.TextDocumentContentChangeEvent]) -> None:
        self.version = version
        for change in changes:
            text = self.file.text
            if isinstance(change, lsp.TextDocumentContentChangePartial):
                ends = converted.offsets(text, change.range)
            else:
                ends = 0, len(text)
            self.file.change(TextEdit(*ends, change.text))
        self.soon()

    def soon(self) -> None:
        """Checks the file once what waits in the stream is read."""
        self._stale = True
        self._child.stop()
        self._later(0, self.check)

    def check(self) -> None:
        self.file.check(self.files())
        self._timer, self._stale = None, False
        self.tell()
        if self.file.program is not None:
            for each in (self, *self._called):
                each._plan_soon()

    def now(self) -> None:
        """Checks the file, if that has not been done: an answer is of the text that is there."""
        if self._stale:
            self._child.stop()
            self.check()

    def _plan_soon(self) -> None:
        if self._timer is None:  # else it is checked soon, and then planned
            self._later(QUIET, self._plan)

    def _plan(self) -> None:
        self._timer = None
        work = self._work()
        if work is not None:
            self._child.start(work, self._take)
        gc.collect()  # while nothing is typed; at other times it is off

    def _work(self) -> Callable[[], Iterator[object]] | None:
        # It is read here, after the first mistakes are shown, and not by each child again.
        from shardlang.editor.planned import shown, shown_in_library

        file = self.file
        if self._caller is not None:
            of, layer = self._caller[0].file, self._caller[1]
            name = library_name(file.name)
            tree = file.checked.tree if file.checked is not None else None
            if of.program is None or tree is None:
                return None
            return partial(shown_in_library, of.program, of.chosen, of.ranks, tree, name, layer)
        if file.checked is None or file.program is None:
            return None
        return partial(shown, file.program, file.checked.tree, file.strategy, file.ranks)

    @property
    def program(self) -> Session:
        """The file with the program that is shown: of a file of the library its caller."""
        return self._caller[0] if self._caller is not None else self

    def show_for(self, caller: Session, layer: LayerName) -> None:
        """Shows a file of the library as a layer of a program runs it."""
        self._leave()
        self._caller = caller, layer
        caller._called.append(self)
        self.file.caller = f"{'.'.join(filter(None, layer))} of {Path(caller.file.name).name}"
        self._plan_soon()

    def _leave(self) -> None:
        if self._caller is not None:
            self._caller[0]._called.remove(self)
        self._caller, self.file.caller, self.file.layouts = None, "", None

    async def page(self) -> str | None:
        """The page of `shardc report` for the text that is there; None where it has mistakes."""
        from shardlang.editor.planned import page

        self.now()
        program, file = self.file.program, self.file
        if program is None:
            return None
        made: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._pages.start(partial(page, program, file.chosen or None, file.ranks), made.set_result, made.cancel)
        try:
            return await made
        except asyncio.CancelledError:  # by a request for a newer one, or at the end of the file
            return None

    def _take(self, found: object) -> None:
        self.file.take(found)
        self.tell()

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, work)

    def close(self) -> None:
        self.closed = True
        self._leave()
        for each in list(self._called):
            each._leave()
            if not each.closed:
                each.tell()
        self._child.stop()
        self._pages.stop()
        if self._timer is not None:
            self._timer.cancel()
