"""A declared operator -> its verdict, found by a process of its own.

Its Python is whatever its user wrote: it may end the process, write to its output, or be killed.
That becomes a diagnostic, and so does one that tells of nothing for longer than it may; the
operators after it are still tried."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardlang.check.own import OwnDecl
from shardlang.diagnostics.diagnostic import InternalError
from shardlang.errors import RunError
from shardlang.runtime.launch.children import begin
from shardlang.terminal import signals

if TYPE_CHECKING:
    from shardlang.interpret.trials.declared import TrialVerdict
    from shardlang.ops.declared import Declaration

# So many seconds a trial under one split may take.
LIMIT = 60.0


def verify(declaration: Declaration | OwnDecl, limit: float = LIMIT) -> TrialVerdict:
    """As `declared.verify`, or `optimizers.verify`. limit: seconds that loading the file, and a
    trial under one split, may take. RunError too where the process ends while it loads the file."""
    from shardlang.interpret.trials.declared import TrialVerdict

    told, status = child(lambda tell: _try(declaration, tell), limit)
    last = told[-1] if told else {}
    if "failure" in last:
        file = last["file"] and Path(last["file"])
        raise RunError(last["failure"], last["message"], file=file, line=last["line"], help=last["help"])
    if "fault" in last:
        raise InternalError(last["fault"])
    if "refused" in last:
        return TrialVerdict(declaration, **{**last, "free": tuple(last["free"])})
    trials, how = [line["at"] for line in told if "at" in line], last.get("ended", said_end(status))
    if "endless" in last:
        return _endless(declaration, trials, limit)
    if not trials:
        fact = f"the file cannot be loaded: it ends the process that loads it ({how})"
        raise RunError("SH619", fact, file=Path(declaration.path))
    help = "raise an exception, a ValueError say, where it cannot compute"
    return TrialVerdict(declaration, f"it ends the process that calls it ({how})", help, trials[-1])


def _endless(declaration: Declaration | OwnDecl, trials: list[str], limit: float) -> TrialVerdict:
    """The verdict on a function that did not end in time; RunError where its file did not."""
    from shardlang.interpret.trials.declared import TrialVerdict

    help = f"if it is as slow as that, wait longer: `--limit {5 * limit:g}`"
    if not trials:
        fact = f"the file cannot be loaded: that has not ended after {limit:g} seconds"
        raise RunError("SH619", fact, file=Path(declaration.path), help=help)
    return TrialVerdict(declaration, f"it has not ended after {limit:g} seconds", help, trials[-1])


def _try(declaration: Declaration | OwnDecl, tell: Callable[[Any], None]) -> None:
    """Tells of each trial as it begins ("" before the first), and of the verdict, in the child."""
    from shardlang.interpret.trials import declared, optimizers
    from shardlang.interpret.trials.whole_operator import said

    def begun(trial: str) -> None:
        tell({"at": trial})

    try:
        if isinstance(declaration, OwnDecl):
            found = optimizers.verify(declaration, begun)
        else:
            found = declared.verify(declaration, begun)
        tell({name: getattr(found, name) for name in ("refused", "help", "at", "tried", "sets", "free")})
    except RunError as error:
        file = str(error.file) if error.file is not None else ""
        tell({"failure": error.code, "message": error.message, "file": file, "line": error.line, "help": error.help})
    except Exception:
        tell({"fault": traceback.format_exc()})
    except BaseException as error:  # its own SystemExit or KeyboardInterrupt: signals do not get here
        tell({"ended": said(error)})


def child(
    work: Callable[[Callable[[Any], None]], None], limit: float, gradients: bool = True
) -> tuple[list[Any], int]:  # fmt: skip
    """The lines that a process of its own tells, and its exit code. It is ended where it tells
    nothing for `limit` seconds; the last line is then `{"endless": true}`. gradients: whether it
    computes any."""
    read, write = os.pipe()
    child = begin(partial(_in_child, write, work), (write,), (read,), gradients)
    os.close(write)
    try:
        with open(read, "rb", buffering=0) as pipe:
            told = [json.loads(line) for line in _lines(pipe, limit)]
    finally:
        os.kill(child, signal.SIGKILL)  # it has told all, or this process is interrupted
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return told, status


def _lines(pipe: RawIOBase, limit: float) -> Iterator[bytes]:
    """The whole lines that come through a pipe, until it ends or is silent for too long."""
    rest = b""
    while select.select([pipe], [], [], limit)[0]:
        come = pipe.read(1 << 16)
        if not come:
            return
        *lines, rest = (rest + come).split(b"\n")
        yield from lines
    yield b'{"endless": true}'


def _in_child(write: int, work: Callable[[Callable[[Any], None]], None]) -> None:
    """Does the work. Its output goes to standard error, not among ours."""
    signals.in_rank()
    os.dup2(2, 1)

    def tell(found: Any) -> None:
        os.write(write, f"{json.dumps(found)}\n".encode())

    try:
        work(tell)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def said_end(status: int) -> str:
    """The end of a process in words, by its exit code."""
    return f"exit code {status}" if status >= 0 else f"{signal.Signals(-status).name} (signal {-status})"
