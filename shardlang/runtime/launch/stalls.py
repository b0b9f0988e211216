"""The records of ranks -> the rank that makes no progress, if there is one: `look`.

A rank that waits in a collective is not to blame as long as another one gets on. One that starts,
evaluates or writes a checkpoint has as long as a collective may take, unless its process is
stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from shardlang.runtime.launch import reports
from shardlang.runtime.launch.reports import RankStatus

# Without --stall-timeout: so many usual steps, and at least so many seconds.
STEPS, LEAST = 20, 60.0
# Where all ranks wait, and one on a device compiles, evaluates, or has its first step under way:
# nobody knows yet how long the device needs, and while it works the host sees nothing get on.
FIRST = 600.0
# Where what is waited for is on another host: that host may say more.
_ELSEWHERE = 3.0


@dataclass(frozen=True)
class Stall:
    """A rank that makes no progress. limit: seconds; stopped: the system does not run it. all_wait:
    so do all others, each for another."""

    rank: int
    idle: float
    limit: float
    stopped: bool = False
    all_wait: bool = False

    @property
    def text(self) -> str:
        why = ""
        if self.stopped:
            why = ": its process is stopped (SIGSTOP)"
        elif self.all_wait:
            why = ": it waits, and so does every other rank"
        return f"error[SH515]: rank {self.rank} has made no progress for {self.idle:.0f} s{why}"

    @property
    def help(self) -> str:
        return f"  the limit is {self.limit:.3g} s: --stall-timeout SECONDS sets another one"


def look(
    folder: Path, ranks: Collection[int], given: float | None, token: int = 0, elsewhere: bool = False
) -> Stall | None:
    """The rank to blame of some that have their records in a folder."""
    now = time.monotonic()
    heads = reports.records(folder, ranks, token, called=False).values()
    if all(now - rank.progress <= _limit(rank, given) for rank in heads):
        return None
    return stalled(reports.records(folder, ranks, token).values(), given, now, elsewhere)


def stalled(seen: Iterable[RankStatus], given: float | None, now: float, elsewhere: bool = False) -> Stall | None:
    """The rank to blame. given: --stall-timeout. elsewhere: there are ranks on other hosts."""
    there = [rank for rank in seen if rank.phase != "ended" and not rank.told]
    late = [stall for rank in there if (stall := _late(rank, given, now)) is not None]
    if late:
        return max(late, key=lambda stall: (stall.stopped, stall.idle))
    if not there or any(rank.waiting is None for rank in there):
        return None
    last = max(there, key=lambda rank: rank.progress)
    limit = _limit(last, given)
    if given is None and any(rank.ahead and rank.allowance for rank in there):
        limit = max(limit, FIRST)
    if now - last.progress <= limit + (_ELSEWHERE if elsewhere else 0.0):
        return None
    # Of ranks that all wait, the one that others wait for, which it has left behind.
    blamed = next((rank for rank in there if any(other.awaits(rank) for other in there)), last)
    return Stall(blamed.rank, now - blamed.progress, limit, all_wait=True)


def _late(rank: RankStatus, given: float | None, now: float) -> Stall | None:
    idle, limit = now - rank.progress, _limit(rank, given)
    if idle <= limit:
        return None
    if stopped(rank.pid):
        return Stall(rank.rank, idle, limit, stopped=True)
    if rank.waiting is None and idle > rank.allowance:
        return Stall(rank.rank, idle, max(limit, rank.allowance))
    return None


def _limit(rank: RankStatus, given: float | None) -> float:
    return max(LEAST, STEPS * rank.usual) if given is None else given


def stat(pid: int) -> list[str]:
    """The numbers of a process from its state on (proc(5)); nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, or held by a debugger."""
    return stat(pid)[:1] in (["T"], ["t"])


def runs(pid: int) -> bool:
    """Whether a process is there and the system runs it."""
    return stat(pid)[:1] not in ([], ["T"], ["t"], ["Z"], ["X"])


def how_it_ended(pid: int) -> int | None:
    """The exit code, or less the signal's number, of a process that nobody has waited for yet; None
    where the system does not say it."""
    fields = stat(pid)
    if fields[:1] != ["Z"] or len(fields) < 50:
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))
