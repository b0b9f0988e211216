"""One forked rank: sets up the process, runs the program, and tells the launcher how it ended.

The launcher's side is launcher.py. A rank's output goes to its log file; its report, a line of
JSON, goes to a pipe."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist

from shardlang.disk.locks import unwritable
from shardlang.disk.overwrite_guard import LOG_MARK
from shardlang.disk.run_files import record_file
from shardlang.errors import RunError
from shardlang.runtime.citations import cited
from shardlang.runtime.comm import mesh
from shardlang.runtime.comm.record import record
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.functions.indices import met
from shardlang.runtime.launch import flight
from shardlang.runtime.launch.children import take_threads
from shardlang.runtime.launch.devices import DeviceChoice
from shardlang.runtime.logs import Log
from shardlang.runtime.program import RunProgram
from shardlang.runtime.step.train import run
from shardlang.terminal import signals
from shardlang.terminal.signals import FAILED

Work = Callable[[RunProgram, Mapping[str, Dataset], Log, Path | None], None]
# What a rank sees when another one is gone: it is not the cause.
_PEER_GONE = ("closed by peer", "Connection reset", "Broken pipe", "Connection refused", "Socket closed")


@dataclass
class RankReport:
    """How a rank ended: `kind` is "done", "saved" (as SIGUSR1 asks), "error" (a RunError) or
    "exception"; `place` cites the program, `line` is emitted. unlogged: why its log lacks
    something; trace: the traceback, where that is what it lacks."""

    kind: str
    message: str = ""
    place: str = ""
    line: str = ""
    peer: bool = False
    unlogged: str = ""
    trace: str = ""

    def text(self, rank: int) -> str:
        """The message for the user about what went wrong on a rank."""
        if self.kind == "error":
            return self.message
        place = f"\n  --> {self.place}" if self.place else ""
        line = f"\n  in: {self.line}" if self.line else ""
        return f"error[SH501]: rank {rank} failed: {self.message}{place}{line}"


@dataclass
class Task:
    """The state that all ranks of a run share. threads: with how many each computes on a CPU, where
    OMP_NUM_THREADS does not say it. work: what each does once it is connected. again: how often
    they have been started before."""

    program: RunProgram
    main_file: Path
    data: Mapping[str, Dataset]
    ranks: int
    threads: int
    devices: DeviceChoice
    store: Path
    metrics: Path | None
    save_weights: Path | None
    work: Work = run
    again: int = 0


def place(error: BaseException, main_file: Path) -> tuple[str, str]:
    """The program's line cited above a failure of an emitted file, and that line; else empty."""
    beside = str(main_file.parent)
    files = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(".py")]
    frames = [f for f in files if os.path.dirname(os.path.abspath(f.filename)) == beside]
    if not frames or frames[-1].lineno is None:
        return "", ""
    lines, at = Path(frames[-1].filename).read_text().splitlines(), frames[-1].lineno - 1
    return cited(lines, at), lines[at].strip()


def report_of(error: BaseException, main_file: Path) -> RankReport:
    """The message about an exception."""
    error = error if isinstance(error, RunError) else met() or error
    if isinstance(error, RunError):
        return RankReport("error", str(error))
    cited, line = place(error, main_file)
    message = f"{type(error).__name__}: {error}"
    return RankReport("exception", message, cited, line, peer_gone(message))


def peer_gone(message: str) -> bool:
    """Whether an error says only that another rank is gone."""
    return any(text in message for text in _PEER_GONE)


def redirect(log_file: Path, again: int) -> int:
    """Sends this process's output to its log file; a descriptor of the former standard output.
    again: starts before this one, whose output stays there. RunError where it cannot be written."""
    terminal = os.dup(1)
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if again else os.O_TRUNC), 0o644)
        os.write(descriptor, f"restart {again}\n".encode() if again else f"{LOG_MARK}\n".encode())
    except OSError as error:
        raise unwritable(log_file, "a rank's log", error, "--log-dir DIR, another folder") from None
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    return terminal


def written(text: str = "") -> str:
    """Writes a text to the standard error, and out what waits for it and the standard output; why
    that cannot be done, else ""."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.stdout.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def main(task: Task, rank: int, parent: int, log_file: Path, report: int, release: int) -> None:
    """The life of a forked rank; never returns. `report`: where it writes how it ended; `release`:
    closed once all are done."""
    signals.die_with_parent(parent)
    code, logs = FAILED, False
    try:
        signals.in_rank()
        signals.heed_save(task.program.checkpoint is not None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        terminal = redirect(log_file, task.again)
        logs = True
        _on_record(record_file(log_file.parent, rank), task, rank)
        flight.begin(log_file.parent, task.store.parent, task.devices.kind)
        ended = RankReport(_run(task, rank, terminal), unlogged=written())
        record.phase("ended")
        _send(report, ended)
        # A rank that closes its connections early would fail one that is still in its last
        # collective.
        os.read(release, 1)
        mesh.disconnect()
        code = 0
    except BaseException as error:
        found = report_of(error, task.main_file)
        trace = traceback.format_exc() if logs else ""
        found.unlogged = written(trace)
        found.trace = trace if found.unlogged else ""
        _send(report, found)
    # Without the interpreter's teardown, which has nothing left to do.
    os._exit(code)


def _on_record(file: Path, task: Task, rank: int) -> None:
    try:
        record.open(file, task.main_file.parent, rank, task.ranks)
    except OSError as error:
        raise unwritable(file, "a rank's record", error, "--log-dir DIR, another folder") from None


def _send(report: int, ended: RankReport) -> None:
    os.write(report, (json.dumps(asdict(ended)) + "\n").encode())


def _run(task: Task, rank: int, terminal: int) -> str:
    """The whole run; how it ended."""
    take_threads(task.threads)
    device = task.devices.device(rank)
    store = dist.FileStore(str(task.store), task.ranks) if task.ranks > 1 else None
    mesh.connect(rank, task.ranks, device, store)
    out = os.fdopen(terminal, "w") if rank == 0 else None
    log = Log(out, task.metrics if rank == 0 else None)
    try:
        task.work(task.program, task.data, log, task.save_weights)
        return "done"
    except signals.SavedAndEnded:
        return "saved"
    finally:
        log.close()
