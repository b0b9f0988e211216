"""A declared operator -> its verdict, found by a process of its own.

Its Python is whatever its user wrote: it may end the process, write to its output, or be killed.
That becomes a diagnostic, and the operators after it are still tried."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardlang import ending
from shardlang.check.own import OwnDecl
from shardlang.diagnostics.diagnostic import InternalError
from shardlang.errors import RunError

if TYPE_CHECKING:
    from shardlang.interpret.brute.declared import Verdict
    from shardlang.ops.declared import Declaration

_PR_SET_PDEATHSIG = 1


def verify(declaration: Declaration | OwnDecl) -> Verdict:
    """As `declared.verify`, or `optimizers.verify`. RunError too where the process ends while it
    loads the file."""
    from shardlang.interpret.brute.declared import Verdict

    told, status = _child(lambda tell: _try(declaration, tell))
    last = told[-1] if told else {}
    if "failure" in last:
        file = last["file"] and Path(last["file"])
        raise RunError(last["failure"], last["message"], file=file, line=last["line"], help=last["help"])
    if "fault" in last:
        raise InternalError(last["fault"])
    if "refused" in last:
        return Verdict(declaration, **{**last, "free": tuple(last["free"])})
    trials, how = [line["at"] for line in told if "at" in line], last.get("ended", _how(status))
    if not trials:
        fact = f"the file cannot be loaded: it ends the process that loads it ({how})"
        raise RunError("SH619", fact, file=Path(declaration.path))
    help = "raise an exception, a ValueError say, where it cannot compute"
    return Verdict(declaration, f"it ends the process that calls it ({how})", help, trials[-1])


def _try(declaration: Declaration | OwnDecl, tell: Callable[[Any], None]) -> None:
    """Tells of each trial as it begins ("" before the first), and of the verdict, in the child."""
    from shardlang.interpret.brute import declared, optimizers
    from shardlang.interpret.brute.wholes import said

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


def _child(work: Callable[[Callable[[Any], None]], None]) -> tuple[list[Any], int]:
    """The lines that a forked process tells, and its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _in_child(parent, write, work)
    os.close(write)
    try:
        with open(read, encoding="utf-8") as lines:
            told = [json.loads(line) for line in lines if line.endswith("\n")]
    finally:
        os.kill(child, signal.SIGKILL)  # it has told all, or this process is interrupted
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return told, status


def _in_child(parent: int, write: int, work: Callable[[Callable[[Any], None]], None]) -> None:
    """Does the work, and ends the process. Its output goes to standard error, not among ours."""
    ending.in_rank()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(2, 1)

    def tell(found: Any) -> None:
        os.write(write, f"{json.dumps(found)}\n".encode())

    try:
        work(tell)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _how(status: int) -> str:
    """The end of a process in words."""
    return f"exit code {status}" if status >= 0 else f"{signal.Signals(-status).name} (signal {-status})"
