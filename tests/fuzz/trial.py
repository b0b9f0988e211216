"""Tries one input and says what did not hold.

Whatever the input: no exception leaves the compiler; each diagnostic has a code with a page, places inside of their
texts and a message of bounded length; all four outputs render; no result without diagnostics that say why; the
formatter keeps the tree and the comments, and a second run changes nothing; what is emitted is Python.
"""

from __future__ import annotations

import importlib.abc
import io
import json
import os
import shutil
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlang import driver
from shardlang.cli.main import run as command
from shardlang.diagnostics import explain_pages
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.diagnostics.rendered import OUTPUTS, SHOWN, rendered
from shardlang.sources.files import Unreadable, decoded, read_program
from shardlang.sources.source import Source
from shardlang.syntax.expressions import Node
from tests.fuzz.case import Case
from tests.syntax.comments import comments

LONGEST = 1_000  # characters of a message, a label or a help


@dataclass(frozen=True)
class Fault:
    """What did not hold. `where` tells faults apart: two of the same are one bug."""

    sort: str
    where: str
    text: str


class Stop(BaseException):
    """The time of an input is over. No handler for ordinary exceptions may take it."""


def tried(case: Case, lap: Callable[[], None] = lambda: None) -> list[Fault]:
    """All that did not hold for an input. `lap` is called between what different commands do: each has its own time."""
    with _folder(case):
        try:
            return _command(case) if case.argv is not None else _program(case, lap)
        except MemoryError as error:
            return [Fault("memory", _place(error), _trace(error))]
        except Exception as error:
            return [Fault("traceback", _place(error), _trace(error))]


@contextmanager
def _folder(case: Case) -> Iterator[None]:
    """A folder of the case's own files to be in, where it has any."""
    if not case.files and case.argv is None:
        yield
        return
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="fuzz-"))
    tempfile.tempdir = str(folder / "temporary")
    try:
        os.mkdir(tempfile.tempdir)
        case.write(folder)
        os.chdir(folder)
        yield
    finally:
        os.chdir(before)
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)


def _place(error: BaseException) -> str:
    """The kind of an exception and where in the compiler it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "shardlang" in f.filename]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} {Path(last.filename).name}:{last.name}"


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-8))[-3_000:]


# --- a program, stage by stage -----------------------------------------------


def _program(case: Case, lap: Callable[[], None]) -> list[Fault]:
    try:
        source = read_program("main.shard") if case.files else Source("main.shard", decoded(case.text))
    except Unreadable:
        return []
    faults = _formatted(source, lap)
    lap()
    sink = Sink()
    program = driver.check_source(source, sink, case.overrides)
    if program is None and not sink.failed:
        faults.append(Fault("silent", "check", "no program, and no error that says why"))
    if program is not None:
        faults += _planned(program, case, sink)
    lap()
    return faults + told(sink.found)


def _planned(program: Any, case: Case, sink: Sink) -> list[Fault]:
    names = {s.name.text for s in program.strategies}
    plan = driver.check_strategies(program, case.strategy if case.strategy in names else None, case.ranks, sink)
    if plan is None:
        silent = case.ranks is not None and program.training is not None and not sink.failed
        return [Fault("silent", "plan", "no plan, and no error that says why")] if silent else []
    from shardlang.folds.report import report

    json.dumps(report(plan))
    files = driver.emit_plan(plan, sink)
    if files is None:
        return [] if sink.failed else [Fault("silent", "emit", "no files, and no error that says why")]
    return [fault for name, text in files.items() if (fault := _python(name, text))]


def _python(name: str, text: str) -> Fault | None:
    try:
        compile(text, name, "exec")
    except (SyntaxError, ValueError, RecursionError) as error:
        return Fault("emitted", f"{type(error).__name__}: {error}"[:80], f"{name}: {error}")
    return None


def _formatted(source: Source, lap: Callable[[], None]) -> list[Fault]:
    """Formatting keeps the tree and the comments; a second run changes nothing."""
    sink = Sink()
    before = driver.parse_source(source, sink)
    if sink.failed:
        return []
    from shardlang.format.format import format_file

    text = format_file(before)
    lap()
    after = driver.parse_source(Source(source.name, text), sink)
    if sink.failed:
        return [Fault("format", "does not parse", f"{sink.found[-1].message}\n{text[:2000]}")]
    if shape(before.items) != shape(after.items):
        return [Fault("format", "another tree", text[:2000])]
    if comments(before.source) != comments(after.source):
        return [Fault("format", "another comment", text[:2000])]
    again = format_file(after)
    if again != text:
        return [Fault("format", "not idempotent", f"{text[:2000]}\n---\n{again[:2000]}")]
    return []


def shape(root: Any) -> list[Any]:
    """A tree in one list, without places."""
    found: list[Any] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            found.append(len(node))
            waiting.extend(reversed(node))
        elif isinstance(node, Node):
            names = [f for f in node.__dataclass_fields__ if not f.endswith("span")]  # type: ignore[attr-defined]
            found.append(type(node).__name__)
            waiting.extend(getattr(node, name) for name in reversed(names))
        else:
            found.append(node)
    return found


# --- diagnostics -------------------------------------------------------------


def told(found: list[Diagnostic]) -> list[Fault]:
    """What is wrong with diagnostics."""
    faults = [fault for d in found for fault in _diagnostic(d)]
    for form in OUTPUTS:
        text = rendered(found[:SHOWN], form)
        try:
            _parsed(form, text, found[:SHOWN])
        except (ValueError, AssertionError) as error:
            faults.append(Fault("rendering", form, f"{error!r}\n{text[:1000]}"))
    return faults


def _diagnostic(d: Diagnostic) -> Iterator[Fault]:
    if d.code not in explain_pages.pages():
        yield Fault("code", d.code, "has no page")
    if d.code == "SH900":
        yield Fault("traceback", "SH900", d.message)
    for label in [*([d.primary] if d.primary else []), *d.labels]:
        span = label.span
        if not 0 <= span.start <= span.end <= len(span.source.text):
            yield Fault("span", d.code, f"{span.start}..{span.end} of {len(span.source.text)}: {d.message}")
    texts = [d.message, *d.help, *d.notes, *(label.text for label in [*([d.primary] if d.primary else []), *d.labels])]
    if not d.message or max(map(len, texts)) > LONGEST:
        yield Fault("length", d.code, max(texts, key=len)[:300])
    if any("<shardlang." in t or "Dim(" in t or "Fraction(" in t or "object at 0x" in t for t in texts):
        yield Fault("text", d.code, f"{texts}"[:600])


def _parsed(form: str, text: str, found: list[Diagnostic]) -> None:
    text.encode("utf-8", "backslashreplace")
    match form:
        case "json":
            assert len([json.loads(line) for line in text.split("\n")[:-1]]) == len(found)
        case "sarif":
            assert len(json.loads(text)["runs"][0]["results"]) == len(found)
        case "concise":
            assert text.count("\n") == len(found), "a line each"
            assert all(line.isprintable() for line in text.split("\n")), "a character that does not print"
        case "full":
            assert all(line.isprintable() for line in text.split("\n")), "a character that does not print"


# --- a command line ----------------------------------------------------------


def _command(case: Case) -> list[Fault]:
    """The whole command in this process; what starts ranks or needs torch is replaced by what does nothing."""
    stub()
    # As Python opens them: what the encoding lacks is escaped on standard error and an error on standard output.
    handlers = ("strict", "backslashreplace")
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors, write_through=True) for errors in handlers]
    stdin = types.SimpleNamespace(buffer=io.BytesIO(case.stdin), isatty=lambda: False)
    saved = sys.stdin, sys.stdout, sys.stderr, sys.argv
    sys.stdin, (sys.stdout, sys.stderr) = stdin, streams  # type: ignore[assignment]
    sys.argv = ["shardc", *(case.argv or ())]
    try:
        code = command(list(case.argv or ()))
    except Started:
        code = 0
    finally:
        sys.stdin, sys.stdout, sys.stderr, sys.argv = saved
    out, err = (stream.buffer.getvalue().decode("utf-8") for stream in streams)  # type: ignore[attr-defined]
    faults = []
    if code not in (0, 1, 2, 3):
        faults.append(Fault("code", f"exit {code}", err[-500:]))
    if "Traceback (most recent call last)" in err + out or "error[SH900]" in err:
        faults.append(Fault("traceback", _reported(err), err[-3_000:]))
    if code and not (err.strip() or out.strip()):
        faults.append(Fault("silent", f"exit {code}", "nothing was printed"))
    return faults


def _reported(err: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip().startswith('File "') and "shardlang" in line]
    message = next((line for line in err.splitlines() if "SH900" in line), "")
    return f"{lines[-1].rpartition('/')[2] if lines else ''} {message[:60]}"


class Started(BaseException):
    """A command has come to where it computes."""


class NoTorch(importlib.abc.MetaPathFinder):
    """Ends a command that imports torch: the compiler never does, so all that it had to check is checked."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname.partition(".")[0] == "torch":
            raise Started


def stub() -> None:
    """Nothing is launched, and no torch is imported: the fuzzer ends where the ranks begin."""
    os.environ["SHARDC_TRACEBACK"] = "1"
    launch = types.ModuleType("shardlang.runtime.launch.launcher")
    launch.launch = lambda *args, **options: 0  # type: ignore[attr-defined]
    sys.modules["shardlang.runtime.launch.launcher"] = launch
    if not isinstance(sys.meta_path[0], NoTorch):
        sys.meta_path.insert(0, NoTorch())
