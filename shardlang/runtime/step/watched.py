"""A step whose loss, gradients or weights are not finite -> the first value or gradient that is
not: the run goes to the step once more, from its checkpoint or its beginning, and is watched there.

A step depends on nothing but its number, so it computes the same again. A trace of Python's calls
tells what each line of the emitted functions has given; hooks take the gradients. Each rank finds
its own first, and all are told the first of these."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import FrameType
from typing import Any, Protocol

from torch import Tensor

from shardlang.runtime import random
from shardlang.runtime.citations import cited, tracing
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.primitives import exchanged
from shardlang.runtime.comm.record import USUAL, record
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.data.loader import Loader
from shardlang.runtime.logs import Log
from shardlang.runtime.program import RunProgram
from shardlang.runtime.state.checkpoints import Checkpoints, SavedRun
from shardlang.runtime.step.model import RankModel
from shardlang.runtime.step.resume import resume
from shardlang.runtime.tree import layer_of

# So many steps are gone through again, and so many seconds, at most.
_STEPS, _SECONDS = 2000, 600.0


class WatchedRun(Protocol):
    """One rank's run, as in train.py."""

    program: RunProgram
    model: RankModel
    loader: Loader
    passes: Any
    checkpoints: Checkpoints | None
    saved: SavedRun | None
    facts: dict[str, Any]
    step: int
    total: int

    def __init__(self, program: RunProgram, data: Mapping[str, Dataset], log: Log) -> None: ...


@dataclass(frozen=True)
class Broken:
    """A number that is not finite. when: it was seen, by the clock; what is computed from it is
    seen later. index: in the part that the rank holds. line: of the program."""

    when: float
    rank: int
    step: int
    what: str
    number: str
    index: list[int]
    line: str

    def __str__(self) -> str:
        where = f" at {self.index}" if self.index else ""
        line = f", for {self.line}" if self.line else ""
        return f"on rank {self.rank} {self.what} is {self.number}{where} in step {self.step}{line}"


class Finder:
    """Looks at what the functions of the emitted files compute."""

    def __init__(self) -> None:
        self.step, self.looks = 0, True
        self.found: Broken | None = None
        # Tensors with -inf that a line of the program asks for, as masks do, and what comes of
        # them.
        self.meant: dict[int, Tensor] = {}

    def on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        """Python's trace function."""
        lines = record.emitted(frame.f_code.co_filename)
        if lines is None or frame.f_code.co_name.startswith("<"):
            return None
        given = {name: id(x) for name, x in frame.f_locals.items()}
        return partial(self._on_line, lines, given, [frame.f_lineno])

    def _on_line(
        self, lines: list[str], seen: dict[str, int], at: list[int], frame: FrameType, event: str, _: Any
    ) -> Any:
        """Looks at what the line before this one has bound."""
        if event in ("line", "return") and self.found is None:
            for name, x in frame.f_locals.items():
                if isinstance(x, Tensor) and seen.get(name) != id(x):
                    seen[name] = id(x)
                    self._look(frame, lines, at[0], name, x)
            at[0] = frame.f_lineno
        return partial(self._on_line, lines, seen, at)

    def _look(self, frame: FrameType, lines: list[str], line: int, name: str, x: Tensor) -> None:
        path = layer_of(frame.f_locals)
        what, place = f"`{name}`" + (f" of {path}" if path else ""), cited(lines, line - 1)
        text = " ".join(lines[line - 1 : frame.f_lineno - 1] or lines[line - 1 : line])
        words = {id(frame.f_locals.get(word)) for word in re.findall(r"\w+", text)}
        if re.search(r"\binf\b", text) or words & self.meant.keys():
            self.meant[id(x)] = x
        self.check(x.detach(), what, place, id(x) in self.meant)
        if x.requires_grad and x.is_leaf is False:
            x.register_hook(lambda gradient: self.check(gradient, f"the gradient of {what}", place))

    def check(self, x: Tensor, what: str, place: str, meant: bool = False) -> None:
        values = x.to_dense() if x.is_sparse else x
        if self.found is not None or not self.looks or not values.is_floating_point():
            return
        broken = ~(values.isfinite() | values.isneginf() if meant else values.isfinite())
        if broken.any():
            index = [int(i) for i in broken.nonzero()[0]]
            number = str(values[tuple(index)].item())
            self.found = Broken(time.time(), world.rank, self.step, what, number, index, place)

    def look_at(self, run: WatchedRun) -> None:
        """Looks at the parameters between two steps."""
        for path, x in run.model.trained.items():
            self.check(x.detach(), f"`{path}` after the update", "")

    def watch_gradients(self, run: WatchedRun) -> None:
        """Looks at the gradients of parameters, microbatch by microbatch."""
        for path, leaf in run.model.leaves.items():
            if leaf.requires_grad and path not in run.model.stored:
                leaf.register_hook(lambda gradient, path=path: self.check(gradient, f"the gradient of `{path}`", ""))

    @contextmanager
    def watching(self) -> Iterator[None]:
        with tracing(self.on_call):
            yield
        self.meant.clear()


def first(run: WatchedRun, step: int) -> str:
    """The first number that is not finite in a step, in the step before it, or in the gradients of
    a parameter in any before; "" where none is found, or the way to it is too long. All ranks call
    it."""
    if not all(exchanged(bool(record.folder))):
        return ""
    usual = max(exchanged(record.seconds[USUAL]))
    with record.during("watching"):
        again = _begun(run, step)
        if again is None or step - again.step > min(_STEPS, _SECONDS / max(usual, 1e-9)):
            return ""
        finder = Finder()
        finder.watch_gradients(again)
        _go(again, finder, step)
    found = [Broken(**each) for each in exchanged(finder.found and asdict(finder.found)) if each is not None]
    return str(min(found, key=lambda each: (each.when, each.rank))) if found else ""


def _go(run: WatchedRun, finder: Finder, step: int) -> None:
    """Goes on to a step, or to where a rank finds something."""
    # Where such a step is left out, a gradient that is not finite is no mistake.
    skips = run.model.gradients.skips
    watched = step if skips else step - 1
    finder.look_at(run)
    while run.step < step and not any(exchanged(finder.found is not None)):
        run.step += 1
        finder.step, finder.looks = run.step, not skips or run.step >= watched
        random.at_step(run.step)
        run.model.gradients.begin()
        record.moved()
        batch = run.loader.batch(run.step)
        if run.step < watched:
            run.passes.step(batch).wait()
            run.model.update(run.step, run.total)
            continue
        with finder.watching():
            run.passes.step(batch).wait()
        run.model.update(run.step, run.total)
        finder.look_at(run)


def _begun(run: WatchedRun, step: int) -> WatchedRun | None:
    """The run anew, from its newest checkpoint before the step, or its beginning; None where
    another run has written there."""
    program = replace(run.program, eval=None, profile=None, compile="none")
    again = type(run)(program, {"data": run.loader.dataset}, Log(None, None))
    start = run.saved.step if run.saved is not None else 0
    if run.checkpoints is not None:
        kept = max((at for at in range(start + 1, step) if run.checkpoints.due(at, run.total)), default=start)
        run.checkpoints.wait()
        saved = resume(again.model, run.checkpoints.offered(), run.facts, lambda _: None) if kept else None
        again.step = saved.step if saved is not None else 0
        return again if again.step == kept else None
    return again
