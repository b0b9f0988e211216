"""A rank that torchrun or srun has started: what is said of the end of its run, by one rank for
all, and a thread that watches over the ranks of its host.

There is no launcher of ours then. The first rank that fails says why; those that only see that it
is gone hear of it through their store. If a rank dies without a word, or makes no progress, another
one of its host says what its record tells."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import torch.distributed as dist

from shardlang.disk.overwrite_guard import LOG, RECORD, target
from shardlang.disk.run_files import log_file, record_file
from shardlang.errors import RunError
from shardlang.launch.started import Started, started_before
from shardlang.runtime.comm import record as form
from shardlang.runtime.comm.record import record
from shardlang.runtime.launch import flight, reports, stalls
from shardlang.runtime.launch.answers import Answers, NoAnswer
from shardlang.runtime.launch.children import ended
from shardlang.runtime.launch.rank import redirect, report_of, written
from shardlang.runtime.program import RunProgram
from shardlang.terminal import signals
from shardlang.terminal.display import safe
from shardlang.terminal.signals import FAILED

# Seconds within which the rank that failed first has said why.
_PATIENCE = 5.0
_GIVEN_UP = 0.5
# How often the store is asked whether a rank of another host has failed.
_ASK = 10.0
# How often progress is looked at.
_EACH = 0.5


class Alone:
    """This rank, where it speaks for itself. folder: of the records. stall: --stall-timeout."""

    def __init__(self, program: RunProgram, main_file: Path, place: Started, folder: Path, stall: float | None) -> None:
        self.program, self.main_file, self.place, self.folder = program, main_file, place, folder
        self.stall, self.token = stall, 0
        self.store: Answers | None = None
        # Ranks are numbered host by host.
        first = place.rank - place.local
        self.here = range(first, first + place.local_size)
        self.over, self.console = False, 2
        # Where the thread hears of SIGTERM: torchrun sends it 0.1 s after it has seen a rank die.
        self.signals = -1
        # Held by the thread from when the others hear that it speaks until it has.
        self.speaking = threading.Lock()
        # When another rank was seen to have failed, and when the store was last asked about that.
        self.failed_at: float | None = None
        self.asked_at = time.monotonic()

    def redirect(self) -> TextIO:
        """Sends what this rank prints to its log, after what earlier starts of the job left there;
        the former standard output. The end of the run is told on the former standard error too."""
        self.console = os.dup(2)
        return os.fdopen(redirect(target(log_file(self.folder, self.place.rank), LOG), started_before()), "w")

    def tell(self, text: str) -> None:
        """Writes lines to the log and for who started the run, who hears too why the log lacks
        them."""
        lacks = ""
        for descriptor in dict.fromkeys([2, self.console]):
            left = f"{text}\n{lacks}".encode()
            try:
                while left:
                    left = left[os.write(descriptor, left) :]
            except OSError as error:
                lacks = self._lacking(error.strerror or str(error))

    def _lacking(self, why: str) -> str:
        return f"warning: the log of rank {self.place.rank} lacks what could not be written: {why}\n"

    def close(self) -> None:
        """Writes out what waits for the log, and says so where that cannot be."""
        if why := written():
            with suppress(OSError):  # nobody is left to hear it
                os.write(self.console, self._lacking(why).encode())
            # It would fail again as the process ends, which changes its exit code.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)

    def begin(self, store: dist.Store | None) -> str:
        """Once the store is there: this rank is on record from now on, and those of its host are
        watched. Why it is not, else ""."""
        if store is not None:
            own = store.clone()
            if self.place.rank == 0:
                own.set("shardlang/start", str(int.from_bytes(os.urandom(7))))
            self.token, self.store = int(own.get("shardlang/start")), Answers(own)
        path = record_file(self.folder, self.place.rank)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            record.open(target(path, RECORD), self.main_file.parent, self.place.rank, self.place.size, self.token)
        except OSError as error:
            return f"no collective is on record, as {path} cannot be written: {error.strerror}"
        if self.store is not None:
            self.signals = signals.heard()
            threading.Thread(target=self._thread, name="watch", daemon=True).start()
        return ""

    def ended(self) -> None:
        """All is well, on all ranks."""
        self.over = True
        record.phase("ended")
        signals.unheard()

    def said(self, error: Exception) -> str:
        """The text of this rank about its failure; "" where another one speaks for it."""
        try:
            if not isinstance(error, dist.DistNetworkError):
                return self._report(error) if self._speaks(error) else ""
        except dist.DistNetworkError:
            if not report_of(error, self.main_file).peer:
                return self._report(error)
        finally:
            with self.speaking:
                record.words[form.TOLD] = 1
        return self._lost()

    def _lost(self) -> str:
        """The text of a rank whose store is gone."""
        rank, (host, port) = self.place.rank, (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        fact = f"rank {rank} lost the store of the run at {host}:{port}: that host, or torchrun on it, is gone"
        lost = RunError("SH501", fact, help="start the run again with --resume, once that host is there")
        return "\n".join([str(lost).partition("\n")[0], *self._around(rank), f"help: {lost.help}"])

    def _report(self, error: Exception) -> str:
        text = report_of(error, self.main_file).text(self.place.rank)
        if isinstance(error, RunError):
            seen = reports.records(self.folder, self.here, self.token)
            return "\n".join([text, *reports.goes_on(self.program, seen.get(self.place.rank))])
        trace = "".join(traceback.format_exception(error))
        return "\n".join([safe(text), *self._around(self.place.rank), safe(trace)])

    def _around(self, rank: int) -> list[str]:
        """Lines about where a rank of this host was, and how to go on."""
        seen = reports.records(self.folder, self.here, self.token)
        log = log_file(self.folder, rank)
        logged = [f"  log: {log}"] if log.exists() else []
        return [*map(safe, reports.told(seen, rank)), *logged, *reports.goes_on(self.program)]

    def _speaks(self, error: Exception) -> bool:
        """Whether this rank is to say how it failed: one speaks for all where all see the same
        mistake, or where the others only miss the one that made it."""
        report = report_of(error, self.main_file)
        if report.peer:
            return not self._told(_PATIENCE) and self._first(report.message)
        if self.store is None:  # it has not met the others
            return True
        return self._first(report.message) or report.kind != "error"

    def _first(self, cause: str) -> bool:
        """Whether this rank is the first to say why the run failed, and leaves the reason for the
        others. Where the store does not answer, one rank of each host speaks."""
        if self.store is None:
            return True
        try:
            first = self.store.count("shardlang/failures") == 1
        except NoAnswer:
            return self.place.rank == min(self._living())
        with suppress(NoAnswer):
            if first:
                self.store.set("shardlang/cause", cause)
        return first

    def _living(self) -> set[int]:
        """The ranks of this host that can speak."""
        seen = reports.records(self.folder, self.here, self.token, called=False).values()
        return {self.place.rank, *(rank.rank for rank in seen if stalls.runs(rank.pid))}

    def _told(self, patience: float) -> bool:
        """Whether another rank has said why the run failed."""
        until = time.monotonic() + patience
        while self.store is not None:
            with suppress(NoAnswer):
                if self.store.has("shardlang/cause"):
                    return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.05)
        return False

    def _thread(self) -> None:
        try:
            self._watch()
        except dist.DistError:
            # This rank sees it too, where it next hears nothing of the others.
            select.select([self.signals], [], [], 2 * _PATIENCE)
            if not self.over and not record.words[form.TOLD]:
                self.tell(self._lost())
                os._exit(FAILED)

    def _watch(self) -> None:
        """Sees at once that a rank of this host has died, and looks at progress."""
        poll, watched = select.poll(), dict[int, reports.RankStatus]()
        poll.register(self.signals, select.POLLIN)
        looked = 0.0
        while not self.over:
            found = {seen.rank for seen in watched.values()}
            for rank, seen in reports.records(self.folder, set(self.here) - found, self.token).items():
                if rank != self.place.rank:
                    descriptor = _opened(seen.pid)
                    watched[descriptor] = seen
                    if descriptor >= 0:
                        poll.register(descriptor, select.POLLIN)
                    else:
                        self._died(seen)
            come = dict(poll.poll(50 if len(watched) + 1 < len(self.here) else 1000 * _EACH))
            for descriptor in {**come, **dict(poll.poll(0))}.keys() & watched.keys():
                poll.unregister(descriptor)
                self._died(watched[descriptor])
            if self.signals in come and signals.has_come(self.signals):
                record.words[form.TOLD] = 1
                os._exit(128 + signal.SIGTERM)
            self._leave()
            if time.monotonic() - looked > _EACH:
                looked = time.monotonic()
                record.look()
                self._look()

    def _died(self, found: reports.RankStatus) -> None:
        """A rank of this host is gone: says so, where it has not done that itself."""
        now = reports.read(record_file(self.folder, found.rank))
        if now is None or now.pid != found.pid or now.phase == "ended" or now.told:
            return
        status, how = stalls.how_it_ended(found.pid), "ended without a word"
        if status is not None:
            how = ended(status)
            # Of a run that is being ended as a whole nobody is to say anything.
            time.sleep(_GIVEN_UP if -status in (signal.SIGTERM, signal.SIGINT) else 0.0)
        self.failed_at = self.failed_at or time.monotonic()
        self._say(f"error[SH501]: rank {found.rank} {how}", found.rank)

    def _leave(self) -> None:
        """Ends this rank some time after another one has failed, if it has not noticed: it may wait
        in its start for a rank that never comes. Most often what has started the ranks is
        quicker."""
        now = time.monotonic()
        if self.failed_at is None and now - self.asked_at > _ASK:
            self.asked_at = now
            self.failed_at = now if self._told(0.0) else None
        if self.failed_at is not None and now - self.failed_at > 2 * _PATIENCE:
            os._exit(FAILED)

    def _look(self) -> None:
        stall = stalls.look(self.folder, self.here, self.stall, self.token, self.place.size > len(self.here))
        seen = reports.read(record_file(self.folder, stall.rank)) if stall is not None else None
        if stall is None or seen is None:
            return
        more = [*flight.lines(self.folder, self.folder, self.here), stall.help]
        if not self._say(stall.text, stall.rank, "\n".join(more)):
            return
        # A stopped process takes no other signal. What has started the ranks ends the others.
        os.kill(seen.pid, signal.SIGKILL)
        os._exit(FAILED)

    def _say(self, text: str, rank: int, more: str = "") -> bool:
        """Writes it, if this rank is the first to say anything."""
        with self.speaking:
            try:
                first = self._first(text)
            except dist.DistError:
                first = True
            if first:
                self.failed_at = self.failed_at or time.monotonic()
                lines = [text, *self._around(rank), *([more] if more else [])]
                self.tell("\n".join(lines))
        return first


def _opened(pid: int) -> int:
    """A descriptor that tells the end of a process; negative where it is gone already."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -pid
