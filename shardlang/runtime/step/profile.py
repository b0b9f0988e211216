"""`--profile 10..13`: a Chrome trace of some steps, with a range for each function and each line of
the emitted program that runs.

One rank of each stage writes one. The program is not changed: Python tells of its calls and lines,
and ranges of torch.profiler begin and end with them."""

from __future__ import annotations

import ast
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.autograd.profiler import record_function

from shardlang.disk.locks import drafted
from shardlang.disk.overwrite_guard import TRACE_MARK
from shardlang.disk.run_files import trace_file
from shardlang.errors import RunError
from shardlang.runtime.citations import cited, tracing
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.logs import Log
from shardlang.runtime.program import RunProgram
from shardlang.runtime.tree import layer_of

# So many lines of the program are shown at the end, those that take most.
_SHOWN = 10
# What torch writes into JSON as it is, though it may not stand in a text there.
_UNSAFE = str.maketrans({'"': "'", "\\": "/"})


@dataclass(frozen=True)
class RangeNames:
    """An emitted file, for the names of ranges."""

    file: Path

    @cached_property
    def lines(self) -> list[str]:
        return self.file.read_text().split("\n")

    @cached_property
    def statements(self) -> dict[int, tuple[int, str]]:
        """Line -> the first line of the statement that it is in, and what stands there."""
        found: dict[int, tuple[int, str]] = {}
        for node in ast.walk(ast.parse("\n".join(self.lines))):
            if isinstance(node, ast.stmt) and node.end_lineno is not None:
                body = getattr(node, "body", None)
                end = body[0].lineno - 1 if body else node.end_lineno
                alone = None if body or end > node.lineno else node.end_col_offset
                text = self.lines[node.lineno - 1].encode()[node.col_offset : alone].decode()
                found.update(dict.fromkeys(range(node.lineno, end + 1), (node.lineno, text)))
        return found

    def name(self, line: int) -> str:
        """`model.shard:44  h = F.relu(x)  (main.py:33)`."""
        place = cited(self.lines, line - 1).partition(" ")[0]
        name = f"{place + '  ' if place else ''}{self.statements[line][1]}  ({self.file.name}:{line})"
        return name.translate(_UNSAFE)


class Ranges:
    """Python's trace function while steps are profiled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, RangeNames | None] = {}  # None: a file of others
        self.names: set[str] = set()

    def on_call(self, frame: FrameType, event: str, _: Any) -> Any:
        """Begins the range of a function of the emitted program."""
        code = frame.f_code
        file = code.co_filename
        if file not in self.texts:
            self.texts[file] = RangeNames(Path(file)) if Path(file).absolute().parent == self.folder else None
        text = self.texts[file]
        if text is None or code.co_name.startswith("<"):
            return None
        at = layer_of(frame.f_locals)
        return _Frame(self, text, f"{at}: {code.co_name}" if at else f"{code.co_name}  ({text.file.name})").on_event


class _Frame:
    """A call of one function: its range, and that of the statement that it is at."""

    def __init__(self, ranges: Ranges, text: RangeNames, name: str) -> None:
        self.ranges, self.text, self.at = ranges, text, 0
        self.whole, self.line = record_function(name), record_function("")
        self.whole.__enter__()

    def on_event(self, frame: FrameType, event: str, _: Any) -> Any:
        at = self.text.statements.get(frame.f_lineno, (0, ""))[0] if event == "line" else 0
        if event in ("line", "return") and at != self.at:
            if self.at:
                self.line.__exit__(None, None, None)
            self.at = at
            if at:
                name = self.text.name(at)
                self.ranges.names.add(name)
                self.line = record_function(name)
                self.line.__enter__()
        if event == "return":
            self.whole.__exit__(None, None, None)
        return self.on_event


class StepTrace:
    """The trace of this rank, where it is to write one; else nothing happens."""

    def __init__(self, program: RunProgram, total: int, done: int) -> None:
        self.steps, self.file = range(0), Path()
        if program.profile is None:
            return
        steps = program.profile.steps
        if steps.start <= done or steps.stop > total + 1:
            fact = f"there is no step {steps.start if steps.start <= done else steps[-1]} to profile in this run"
            raise RunError("SH503", fact, help=f"--profile STEPS, from {done + 1} to {total}")
        if program.mesh._leads((program.stage_axis,)):
            self.steps, self.file = steps, trace_file(program.profile.to, world.rank)
            self.ranges = Ranges(program.profile.emitted)

    def step(self, number: int, log: Log) -> AbstractContextManager[None]:
        """Around a step of training."""
        return self._step(number, log) if number in self.steps else nullcontext()

    @contextmanager
    def _step(self, number: int, log: Log) -> Iterator[None]:
        if number == self.steps.start:
            self.profiler = torch.profiler.profile()
            self.profiler.start()
        with tracing(self.ranges.on_call), record_function(f"step {number}"):
            yield
        if number == self.steps[-1]:
            self.profiler.stop()
            self._write()
            for line in self._table():
                log.note(line)

    def part(self, name: str) -> AbstractContextManager[Any]:
        """A range around a part of a step that is the runtime's."""
        return record_function(name) if sys.gettrace() is not None and self.steps else nullcontext()

    def _write(self) -> None:
        with tempfile.NamedTemporaryFile(suffix=".json") as raw, drafted(self.file, "a trace") as file:
            self.profiler.export_chrome_trace(raw.name)
            with open(raw.name, "rb") as written:
                head = written.read(16)
                file.write(TRACE_MARK.encode() + head[head.index(b"{") + 1 :])
                shutil.copyfileobj(written, file)

    def _table(self) -> Iterator[str]:
        """Where the trace is, and the lines of the program that took longest in forward."""
        steps = f"step {self.steps.start}" if len(self.steps) == 1 else f"steps {self.steps.start} to {self.steps[-1]}"
        yield f"the trace of {steps} is {self.file}: open it in ui.perfetto.dev or chrome://tracing"
        events = [event for event in self.profiler.key_averages() if event.key in self.ranges.names]
        taken = {e.key: max(e.cpu_time_total, e.device_time_total) / len(self.steps) / 1000 for e in events}
        longest = sorted(taken, key=lambda name: -taken[name])[:_SHOWN]
        yield f"the lines that took longest, in ms a step ({len(longest)} of {len(taken)}):"
        yield from (f"{taken[name]:10.3f}  {name}" for name in longest)
