"""One forked rank: sets up the process, runs the program, and tells the launcher how it ended.

The launcher's side is launcher.py. A rank's output goes to its log file; its report, a line of
JSON, goes to a pipe."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from shardlang import ending
from shardlang.errors import RunError
from shardlang.owned import LOG_MARK
from shardlang.runtime.citations import cited
from shardlang.runtime.comm import mesh
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.launch.devices import Choice
from shardlang.runtime.logs import Log
from shardlang.runtime.program import Program
from shardlang.runtime.step.train import run

Work = Callable[[Program, Mapping[str, Dataset], Log, Path | None], None]
_PR_SET_PDEATHSIG = 1
# What a rank sees when another one is gone: it is not the cause.
_PEER_GONE = ("closed by peer", "Connection reset", "Broken pipe", "Connection refused", "Socket closed")


@dataclass
class Report:
    """How a rank ended: `kind` is "done", "error" (a RunError) or "exception"; `place` cites the
    program, `line` is emitted."""

    kind: str
    message: str = ""
    place: str = ""
    line: str = ""
    peer: bool = False

    def text(self, rank: int) -> str:
        """The message for the user about what went wrong on a rank."""
        if self.kind == "error":
            return self.message
        place = f"\n  --> {self.place}" if self.place else ""
        line = f"\n  in: {self.line}" if self.line else ""
        return f"error[SH501]: rank {rank} failed: {self.message}{place}{line}"


@dataclass
class Task:
    """The state that all ranks of a run share. work: what each does once it is connected."""

    program: Program
    main_file: Path
    data: Mapping[str, Dataset]
    ranks: int
    devices: Choice
    store: Path
    metrics: Path | None
    save_weights: Path | None
    work: Work = run


def place(error: BaseException, main_file: Path) -> tuple[str, str]:
    """The program's line cited above a failure of an emitted file, and that line; else empty."""
    beside = str(main_file.parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.path.dirname(f.filename) == beside]
    if not frames or frames[-1].lineno is None:
        return "", ""
    lines, at = Path(frames[-1].filename).read_text().splitlines(), frames[-1].lineno - 1
    return cited(lines, at), lines[at].strip()


def report_of(error: BaseException, main_file: Path) -> Report:
    """The message about an exception."""
    if isinstance(error, RunError):
        return Report("error", str(error))
    cited, line = place(error, main_file)
    message = f"{type(error).__name__}: {error}"
    return Report("exception", message, cited, line, any(text in message for text in _PEER_GONE))


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _redirect(log_file: Path) -> int:
    """Sends this process's output to its log file; a descriptor of the former standard output."""
    terminal = os.dup(1)
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(descriptor, f"{LOG_MARK}\n".encode())
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    return terminal


def main(task: Task, rank: int, parent: int, log_file: Path, report: int, release: int) -> None:
    """The life of a forked rank; never returns. `report`: where it writes how it ended; `release`:
    closed once all are done."""
    _die_with_parent(parent)
    ending.in_rank()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    terminal = _redirect(log_file)
    code = 3
    try:
        _run(task, rank, terminal)
        os.write(report, (json.dumps(asdict(Report("done"))) + "\n").encode())
        # A rank that closes its connections early would fail one that is still in its last
        # collective.
        os.read(release, 1)
        mesh.disconnect()
        code = 0
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        os.write(report, (json.dumps(asdict(report_of(error, task.main_file))) + "\n").encode())
    sys.stdout.flush()
    # Without the interpreter's teardown, which has nothing left to do.
    os._exit(code)


def _run(task: Task, rank: int, terminal: int) -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // task.ranks))
    device = task.devices.device(rank)
    store = dist.FileStore(str(task.store), task.ranks) if task.ranks > 1 else None
    mesh.connect(rank, task.ranks, device, store)
    out = os.fdopen(terminal, "w") if rank == 0 else None
    log = Log(out, task.metrics if rank == 0 else None)
    if task.devices.note:
        log.note(task.devices.note)
    try:
        task.work(task.program, task.data, log, task.save_weights)
    finally:
        log.end()
