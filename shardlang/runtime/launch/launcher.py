"""Starts the ranks of an emitted program on this machine and watches over them:
`launch(main_file, ranks) -> exit code`.

Torch is imported and the data read once, here; then the ranks are forked, which is most of what
makes a small run fast. A rank that dies ends the run: the others are killed, and what is printed
names rank, place and log. rank.py has the work of a rank."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shardlang.disk.locks import Claims
from shardlang.disk.run_files import claim, log_file, record_file
from shardlang.disk.scratch import scratch
from shardlang.errors import RunError
from shardlang.launch.log_targets import LogTarget
from shardlang.runtime.compiled import asked, require
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.device import Timeout
from shardlang.runtime.events.consumers import load_function
from shardlang.runtime.events.start import claim_events, emitted_hash
from shardlang.runtime.launch import flight, reports, stalls
from shardlang.runtime.launch import rank as forked
from shardlang.runtime.launch.children import ended, fork, threads
from shardlang.runtime.launch.devices import DeviceChoice, chosen
from shardlang.runtime.launch.rank import RankReport, Task, Work
from shardlang.runtime.program import Profiled, RunProgram, load_own
from shardlang.runtime.step.model import given_weights
from shardlang.runtime.step.resume import claim_of_program
from shardlang.runtime.step.train import datasets, require_ranks, run
from shardlang.terminal import signals
from shardlang.terminal.display import safe
from shardlang.terminal.signals import FAILED

# After a first failure: time for the ranks to report theirs, so that the cause is told and not what
# followed from it.
_GRACE = 0.5
# How often progress is looked at.
_LOOK = 0.5


# What a program of stages imports from beside it (emit/emit.py); the caller's own are set aside.
_BESIDE = re.compile(r"mesh|layers|stage\d+")


def read_program(main_file: Path) -> RunProgram:
    """The `program` of an emitted file, which imports those of its stages from beside it."""
    spec = importlib.util.spec_from_file_location("shard_main", main_file)
    if spec is None or spec.loader is None:
        raise RunError("SH503", "the file is no Python program", file=main_file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    named = [file.stem for file in main_file.parent.glob("*.py") if _BESIDE.fullmatch(file.stem)]
    aside = {name: sys.modules.pop(name) for name in named if name in sys.modules}
    folder, before, caching = str(main_file.parent), set(sys.modules), sys.dont_write_bytecode
    # What is cached is told apart by whole seconds, and a program may be compiled twice in one.
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
        sys.dont_write_bytecode = caching
        # The stages of another program have the same names. (torch.compile looks modules up by
        # name.)
        for name in set(sys.modules) - before:
            if os.path.dirname(getattr(sys.modules[name], "__file__", None) or "") == folder:
                own = sys.modules.pop(name)
                own.__name__ = f"{name} of {folder}"
                sys.modules[own.__name__] = own
        sys.modules.update(aside)
    program: RunProgram = module.program
    return program


def launch(
    main_file: Path, ranks: int, *, device: str | None = None, base: Path | None = None, log_dir: Path | None = None,
    metrics: Path | None = None, save_weights: Path | None = None, resume: bool = False, resume_anyway: bool = False,
    overwrite: bool = False, host_storage: Path | None = None, profile: range | None = None,
    compile: bool | None = None, stall: float | None = None, restarts: int = 0, targets: Sequence[LogTarget] = (),
) -> int:  # fmt: skip
    """Runs an emitted program on `ranks` forked ranks; 0, or 3 where the run failed (what and where
    is printed).

    base: the folder that the program's paths are relative to, by default the file's own. log_dir:
    where each rank's log goes, by default `logs` beside the file. profile: steps to write a trace
    of. targets: of its events, which are there."""
    main_file = main_file.resolve()
    try:
        program = read_program(main_file)
        program.base = base if base is not None else main_file.parent
        program.resume, program.resume_anyway = resume or resume_anyway, resume_anyway
        program.overwrite = overwrite
        program.host_storage, program.targets = host_storage, targets
        program.compile, program.hash = asked(program, compile), emitted_hash(main_file) if targets else ""
        logs = log_dir if log_dir is not None else main_file.parent / "logs"
        devices = chosen(device, ranks)
        return launch_program(
            program, main_file, ranks, devices, logs, metrics, save_weights, profile=profile, stall=stall,
            restarts=restarts,
        )  # fmt: skip
    except RunError as error:
        print(error, file=sys.stderr)
        return FAILED


def launch_program(
    program: RunProgram, main_file: Path, ranks: int, devices: DeviceChoice, log_dir: Path | None, metrics: Path | None,
    save_weights: Path | None, work: Work = run, data: Mapping[str, Dataset] | None = None,
    profile: range | None = None, stall: float | None = None, restarts: int = 0,
) -> int:  # fmt: skip
    """Runs a program that has been read. RunError where it cannot start. stall: --stall-timeout;
    restarts: --max-restarts.

    log_dir: None for a new one. work: what each rank does, by default all of training. data: in the
    place of the program's own."""
    require_ranks(program, ranks)
    load_own(program)
    for target in program.targets:
        load_function(target)
    if restarts and program.checkpoint is None:
        fact = "the program sets no checkpoint, and --max-restarts goes on from one"
        raise RunError("SH508", fact, help='add `checkpoint = every(100, keep = 4, to = "checkpoints")` to `train`')
    require(program, devices.kind)
    Timeout.outlast(stall)
    with signals.save_heeded(program.checkpoint is not None), Claims() as claims:
        files = claim(claims, ranks, log_dir, metrics, save_weights, traces=profile is not None)
        program.where, program.log_dir = devices.told(ranks), files.log_dir
        program.profile = Profiled(profile, files.log_dir, main_file.parent) if profile is not None else None
        claim_events(claims, program)
        claim_of_program(claims, program, files.save_weights)
        if program.pipeline is not None and program.pipeline.splits_backward:
            importlib.import_module("torch.distributed.pipelining._backward")  # takes seconds, once for all ranks
        data = data if data is not None else datasets(program)
        given_weights(program)  # each rank opens them too: what is wrong with the files is said before
        with scratch("run") as folder:
            state = (program, main_file, data, ranks, threads(ranks), devices, folder.path / "store")
            task = Task(*state, files.metrics, files.save_weights, work)
            return _with_restarts(task, files.log_dir, stall, restarts)


def _with_restarts(task: Task, log_dir: Path, stall: float | None, restarts: int) -> int:
    """Starts the ranks, and again after a failure, from the newest checkpoint: at most so often,
    and not after two failures that are alike. The exit code."""
    before: Failure | None = None
    for left in range(restarts, -1, -1):
        watch = Watch(log_dir, task.program, stall)
        with signals.at_once(watch.kill):
            try:
                # Without checkpoints the ranks need not know.
                saves = task.program.checkpoint is not None
                signals.heed_save(saves, watch.ask_to_save if saves else None)
                watch.fork(task)
                code = watch.wait()
            finally:
                watch.kill()
        now = watch.failure
        if now is None or not restarts:
            return code
        if now == before or now.of_start or not left:
            why = f"the start before it failed at step {now.step} in the same way" if now == before else (
                "it failed before its first step" if now.of_start else f"it has been started again {restarts} times"
            )  # fmt: skip
            print(f"the run is not started again: {why}", file=sys.stderr)
            return code
        print(f"the run is started again ({task.again + 1} of {restarts})", file=sys.stderr)
        before, task.program.resume, task.again = now, True, task.again + 1
        task.store = task.store.with_name(f"store-{task.again}")
    raise AssertionError


@dataclass(frozen=True)
class Failure:
    """How a start of the run has failed: at which step, and why. of_start: it is a mistake of the
    user's that the first step does not come to."""

    step: int
    cause: str
    of_start: bool


@dataclass
class Child:
    """A forked rank: its process, the pipe of its report, and how it ended once it has."""

    rank: int
    pid: int
    pipe: int
    text: bytes = b""
    report: RankReport | None = None
    status: int | None = None

    @property
    def failed(self) -> bool:
        return (self.report is not None and not self.done) or bool(self.status)

    @property
    def done(self) -> bool:
        return self.report is not None and self.report.kind in ("done", "saved")


@dataclass
class Watch:
    """The ranks of a run, from fork to end; none is left when it is over. unlogged: by rank, why
    its log could not be written here."""

    log_dir: Path
    program: RunProgram
    stall: float | None = None
    children: list[Child] = field(default_factory=list)
    release: int = -1
    stalled: stalls.Stall | None = None
    scratch: Path = Path()
    failure: Failure | None = None
    unlogged: dict[int, str] = field(default_factory=dict)
    _begun: float = field(default_factory=time.monotonic)
    _looked: float = 0.0

    def log_file(self, rank: int) -> Path:
        return log_file(self.log_dir, rank)

    def fork(self, task: Task) -> None:
        """Forks all ranks."""
        sys.stdout.flush()
        sys.stderr.flush()
        # What is there now is shared by all ranks; a collection would touch, and so copy, its pages
        # in each.
        gc.collect()
        gc.freeze()
        # A signal between a fork and what follows it would find a rank that nobody knows of.
        signal.pthread_sigmask(signal.SIG_BLOCK, (*signals.SIGNALS, signal.SIGUSR1))
        self.scratch = task.store.parent
        wait_end, self.release = os.pipe()
        parent = os.getpid()
        for rank in range(task.ranks):
            record_file(self.log_dir, rank).unlink(missing_ok=True)
            read, write = os.pipe()
            pid = fork()
            if pid == 0:
                # A child holds no end of another's pipes, nor the one whose closing it waits for.
                for descriptor in (read, self.release, *(child.pipe for child in self.children)):
                    os.close(descriptor)
                forked.main(task, rank, parent, self.log_file(rank), write, wait_end)
            os.close(write)
            self.children.append(Child(rank, pid, read))
        os.close(wait_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*signals.SIGNALS, signal.SIGUSR1))

    def wait(self) -> int:
        """Waits for the end; prints what went wrong. The exit code."""
        self._until(self._over)
        if self.stalled is not None:
            return self._told(self.children[self.stalled.rank])
        if not any(child.failed for child in self.children):
            os.close(self.release)
            self.release = -1
            # Their work is done: one that does not end then may be ended.
            self._until(lambda: all(c.status is not None for c in self.children), time.monotonic() + stalls.LEAST)
        if not any(child.failed for child in self.children):
            self._tell_unlogged()
            return signals.saved() if any(c.report and c.report.kind == "saved" for c in self.children) else 0
        self._until(lambda: all(child.failed for child in self.children), time.monotonic() + _GRACE)
        # The cause is looked for before the rest is killed, which would look like one.
        return self._told(min((child for child in self.children if child.failed), key=self._weight))

    def _over(self) -> bool:
        """Whether a rank has failed, all are done, or one makes no progress."""
        if any(child.failed for child in self.children) or all(child.done for child in self.children):
            return True
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._looked = now
            living = {child.rank for child in self.children if not child.done}
            self.stalled = stalls.look(self.log_dir, living, self.stall) or self._stopped_early(now)
        return self.stalled is not None

    def _stopped_early(self, now: float) -> stalls.Stall | None:
        """A rank that is stopped before it has a record."""
        idle, limit = now - self._begun, stalls.LEAST if self.stall is None else self.stall
        for child in self.children if idle > limit else ():
            if not record_file(self.log_dir, child.rank).exists() and stalls.stopped(child.pid):
                return stalls.Stall(child.rank, idle, limit, stopped=True)
        return None

    def _told(self, cause: Child) -> int:
        """Prints what went wrong, and ends the rest; the exit code."""
        text = safe(self._text(cause))
        seen = reports.read(record_file(self.log_dir, cause.rank), called=False)
        step, mistake = seen.step if seen else 0, cause.report is not None and cause.report.kind == "error"
        self.failure = Failure(step, self._how(cause), mistake and not step)
        self.kill()
        print(text, file=sys.stderr)
        for child in self.children:
            if child is not cause:  # the logs of those that did not fail by themselves end with what ended them
                try:
                    with self.log_file(child.rank).open("a") as log:
                        log.write(f"{text}\n")
                except OSError as error:
                    self.unlogged[child.rank] = error.strerror or str(error)
        self._tell_unlogged()
        return FAILED

    def _tell_unlogged(self) -> None:
        """Warns of logs that lack something, once for all of them."""
        reported = {c.rank: c.report.unlogged for c in self.children if c.report is not None and c.report.unlogged}
        lacking = {**self.unlogged, **reported}
        for why in sorted({*lacking.values()}):
            ranks = [rank for rank in sorted(lacking) if lacking[rank] == why]
            log = self.log_file(ranks[0])
            whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, of rank {ranks[0]} first,"
            print(f"warning: the log of {whose} lacks what could not be written: {why} ({log})", file=sys.stderr)

    def _until(self, over: object, deadline: float | None = None) -> None:
        """Takes in reports and ends of ranks until `over()`, or the deadline."""
        poll = select.poll()
        for child in self.children:
            if child.status is None:
                poll.register(child.pipe, select.POLLIN)
        while not over() and (deadline is None or time.monotonic() < deadline):  # type: ignore[operator]
            # A closed pipe or a report wakes the poll at once; the limit only serves the deadline.
            for descriptor, _ in poll.poll(100):
                child = next(c for c in self.children if c.pipe == descriptor)
                if self._take(child):
                    poll.unregister(descriptor)

    def _take(self, child: Child) -> bool:
        """Reads from a child's pipe; True once that is closed: then the child has ended."""
        chunk = os.read(child.pipe, 65536)
        child.text += chunk
        if child.report is None and child.text.endswith(b"\n"):
            child.report = RankReport(**json.loads(child.text))
        if not chunk:
            self._reap(child)
        return not chunk

    def _reap(self, child: Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        child.status = os.waitstatus_to_exitcode(status)

    @staticmethod
    def _weight(child: Child) -> tuple[int, int]:
        """Errors of the user's first, then deaths without a word, then exceptions, last those that
        a dead peer explains."""
        if child.report is None or child.done:
            return 1, child.rank
        return {"error": 0, "exception": 3 if child.report.peer else 2}[child.report.kind], child.rank

    def _how(self, child: Child) -> str:
        """The cause of an end, whichever rank it is."""
        if self.stalled is not None:
            return "makes no progress"
        if child.report is not None and not child.done:
            return child.report.message
        return ended(child.status or 0)

    def _text(self, child: Child) -> str:
        if self.stalled is not None:
            text = self.stalled.text
        elif child.report is not None and not child.done:
            text = child.report.text(child.rank)
        else:
            text = f"error[SH501]: rank {child.rank} {self._how(child)}"
        log = f"  log: {self.log_file(child.rank)}"
        seen = reports.records(self.log_dir, range(len(self.children)))
        if child.report is not None and child.report.kind == "error":
            return "\n".join([text, log, *reports.goes_on(self.program, seen.get(child.rank))])
        more = [*flight.lines(self.log_dir, self.scratch, seen), self.stalled.help] if self.stalled is not None else []
        more += [child.report.trace.rstrip("\n")] if child.report is not None and child.report.trace else []
        return "\n".join([text, *reports.told(seen, child.rank), log, *reports.goes_on(self.program), *more])

    def ask_to_save(self) -> None:
        """Passes SIGUSR1 on to the ranks."""
        for child in self.children:
            if child.status is None:
                # The signal may come when a rank has just been waited for.
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGUSR1)

    def kill(self) -> None:
        """Ends what is left of the ranks. A second signal may come to this while it goes on."""
        left = [child for child in self.children if child.status is None]
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        for child in left:
            with suppress(ChildProcessError):
                self._reap(child)
