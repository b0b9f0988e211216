"""`launch(function, ranks=2)`: ranks of this machine, each of which calls a function; what they
return.

Their processes are forked from this one, or new where that cannot be (runtime/launch/children.py).
A forked rank has one thread alone. So nothing of a notebook's own threads runs in it, and its
output is taken down a pipe."""

from __future__ import annotations

import importlib
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardlang.disk.scratch import scratch, sweep
from shardlang.errors import RunError
from shardlang.launch.started import require_alone
from shardlang.runtime.device import KINDS
from shardlang.runtime.launch.children import begin, ended
from shardlang.runtime.launch.devices import DeviceChoice, chosen
from shardlang.runtime.launch.rank import peer_gone
from shardlang.torch.ranks import RankError, end
from shardlang.torch.ranks import begin as take_part

# After a first failure: seconds for the other ranks to say theirs, so that the cause is told.
_GRACE = 0.5


def launch(function: Callable[..., Any], /, *args: Any, ranks: int, device: str = "cpu") -> list[Any]:
    """A list of what `function(*args)` returns on each of so many ranks. It and its arguments are
    as they are here, or copies of them where this process has computed gradients on threads, or
    used CUDA; what it returns is pickled. Lines that a rank prints are printed here.

    RankError where a rank raises, dies, or returns what cannot be pickled: all are ended then. A
    rank computes in one thread."""
    if not callable(function):
        raise TypeError(f"what is launched is a function, not {type(function).__name__}")
    if not isinstance(ranks, int) or isinstance(ranks, bool):
        raise TypeError(f"ranks is a whole number, not {type(ranks).__name__}")
    if ranks < 1:
        raise ValueError(f"ranks is at least 1, not {ranks}")
    if device not in KINDS:
        raise ValueError(f"device is one of {', '.join(KINDS)}, not {device!r}")
    if dist.is_initialized():
        raise RuntimeError("this process is one of several ranks, and launches no others")
    require_alone("`launch`")
    devices = chosen(device, ranks) if device != "cpu" else DeviceChoice("cpu")
    # What torch's optimizers import at their first step, once for all ranks.
    importlib.import_module("torch._dynamo")
    with scratch("launch") as folder:
        run = _Run(function, args, ranks, devices, folder.path / "store")
        try:
            run.begin()
            return run.results()
        finally:
            run.end()
            # What the ranks have left of theirs.
            sweep()


@dataclass
class _Rank:
    """A rank: its process, and the pipes of what it returns and what it prints."""

    number: int
    pid: int
    result: int
    output: int
    given: bytes = b""
    printed: bytes = b""
    ended: bool = False
    status: int | None = None

    def answer(self) -> tuple[str, Any]:
        """("returned", value), ("failed", (text, traceback)), or ("died", how)."""
        try:
            kind, value = pickle.loads(self.given)
        except Exception as error:
            if not self.given or self.status:
                return "died", ended(self.status or 0)
            return "failed", (f"what it returned cannot be read here: {type(error).__name__}: {error}", "")
        return kind, value


@dataclass
class _Run:
    """Ranks from start to end; none is left when it is over."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    size: int
    devices: DeviceChoice
    store: Path
    ranks: list[_Rank] = field(default_factory=list)
    release: int = -1

    def begin(self) -> None:
        wait_end, self.release = os.pipe()
        for number in range(self.size):
            result, give = os.pipe()
            output, put = os.pipe()
            device = self.devices.device(number)
            work = partial(
                _rank, number, self.size, device=device, store=self.store, give=give, put=put, wait_end=wait_end,
                function=partial(self.function, *self.args),
            )  # fmt: skip
            others = [end for rank in self.ranks for end in (rank.result, rank.output) if end >= 0]
            pid = begin(work, (give, put, wait_end), (result, output, self.release, *others))
            os.close(give)
            os.close(put)
            self.ranks.append(_Rank(number, pid, result, output))
        os.close(wait_end)

    def results(self) -> list[Any]:
        """Waits for all; RankError of the rank that is the cause where one fails."""
        self._until(lambda: all(rank.ended for rank in self.ranks) or bool(self._failed()))
        if not self._failed():
            os.close(self.release)
            self.release = -1
            self._until(lambda: False)
            return [rank.answer()[1] for rank in self.ranks]
        self._until(lambda: len(self._failed()) == self.size, time.monotonic() + _GRACE)
        cause = min(self._failed(), key=self._weight)
        kind, value = cause.answer()
        if kind == "died":
            raise RankError(cause.number, f"rank {cause.number} {value}")
        text, trace = value
        raise RankError(cause.number, f"rank {cause.number} failed: {text}", trace)

    def _failed(self) -> list[_Rank]:
        return [rank for rank in self.ranks if rank.ended and rank.answer()[0] != "returned"]

    @staticmethod
    def _weight(rank: _Rank) -> tuple[bool, int]:
        """Last come those that see only that another one is gone."""
        kind, value = rank.answer()
        return kind == "failed" and peer_gone(value[0]), rank.number

    def _until(self, over: Callable[[], bool], deadline: float | None = None) -> None:
        """Takes in what ranks return and print until `over()`, the deadline, or all have closed
        their pipes."""
        while not over() and (deadline is None or time.monotonic() < deadline):
            pipes = {pipe: rank for rank in self.ranks for pipe in (rank.result, rank.output) if pipe >= 0}
            if not pipes:
                return
            for pipe in select.select(list(pipes), [], [], 0.1 if deadline is not None else None)[0]:
                self._take(pipes[pipe], pipe)

    def _take(self, rank: _Rank, pipe: int) -> None:
        chunk = os.read(pipe, 1 << 16)
        if pipe == rank.result:
            rank.given += chunk
        else:
            *lines, rank.printed = (rank.printed + chunk).split(b"\n")
            if not chunk and rank.printed:
                lines, rank.printed = [rank.printed], b""
            for line in lines:
                before = f"[rank {rank.number}] " if self.size > 1 else ""
                print(f"{before}{line.decode(errors='replace')}")
        if chunk:
            return
        os.close(pipe)
        if pipe == rank.output:
            rank.output = -1
            return
        rank.result, rank.ended = -1, True
        if not rank.given:
            self._reap(rank)

    @staticmethod
    def _reap(rank: _Rank) -> None:
        if rank.status is None:
            rank.status = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])

    def end(self) -> None:
        """Ends what is left of the ranks, and closes what is open."""
        if self.release >= 0:
            for rank in self.ranks:
                if rank.status is None:
                    os.kill(rank.pid, signal.SIGKILL)
            os.close(self.release)
            self.release = -1
        for rank in self.ranks:
            self._reap(rank)
            for pipe in (rank.result, rank.output):
                if pipe >= 0:
                    os.close(pipe)
            rank.result = rank.output = -1


def _rank(
    number: int, size: int, device: torch.device, store: Path, function: Callable[[], Any], give: int, put: int,
    wait_end: int,
) -> None:  # fmt: skip
    """The life of a rank. RankError where it failed, which it has told by then."""
    failed = True
    try:
        _settle(put)
        take_part(number, size, device, store)
        answer = pickle.dumps(("returned", function()))
        failed = False
    except BaseException as error:
        text = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        answer = pickle.dumps(("failed", (text, traceback.format_exc())))
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
        with open(give, "wb") as pipe:
            pipe.write(answer)
        # A rank that closes its connections early would fail one that is still in its last
        # collective.
        os.read(wait_end, 1)
        end()
    if failed:
        raise RankError(number, "told by now")


def _settle(put: int) -> None:
    """Leaves behind what a rank must not share with the process that it comes from."""
    signal.set_wakeup_fd(-1)
    # Ctrl-C goes to the process that waits for the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(put, 1)
    os.dup2(put, 2)
    os.close(put)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
