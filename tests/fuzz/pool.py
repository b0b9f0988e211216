"""Runs inputs in a worker process with hard limits, and starts another after each breach.

What one command does with an input (format; check, plan and emit; show what was found) has 2 s of processor time (an
alarm), the input 500 MB of address space (RLIMIT_AS) and 240 s of the clock (the parent kills). Files that have
thousands of one thing have 5 s, and where they are planned 20 s and 2 GB. Time of the processor, not of the clock, is
the measure: other work on the machine must not fail an input.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.trial import Fault, Stop, tried

SECONDS = 2.0
MEGABYTES = 500
# What large files have, by command.
LARGE = {"check": (5.0, MEGABYTES), "plan": (20.0, 2_000)}
PATIENCE = 240.0
SHIFT = 3_000  # inputs until a worker is replaced, of large ones one: what is remembered of others is no part of it


@dataclass
class Outcome:
    """What came of one input; seconds of the processor for its longest command, peak resident megabytes."""

    index: int
    faults: list[Fault] = field(default_factory=list)
    seconds: float = 0.0
    megabytes: float = 0.0


def outcomes(make: Callable[[int], Case], indexes: Sequence[int], shift: int = SHIFT) -> Iterator[Outcome]:
    """The outcome of each input, in order."""
    at = 0
    while at < len(indexes):
        for outcome in _shift(make, indexes[at : at + shift]):
            at += 1
            yield outcome


def _shift(make: Callable[[int], Case], indexes: Sequence[int]) -> Iterator[Outcome]:
    """What one worker does until it is through, or dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(make, indexes, writing)
    os.close(writing)
    done = 0
    for line in _lines(reading):
        found = json.loads(line)
        yield Outcome(found["index"], [Fault(*f) for f in found["faults"]], found["seconds"], found["megabytes"])
        done += 1
    os.close(reading)
    _end(child)
    _, status = os.waitpid(child, 0)
    if done < len(indexes) and (status != 0 or done == 0):
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        sort = "time" if killed == signal.SIGKILL else "death"
        yield Outcome(indexes[done], [Fault(sort, f"signal {killed}", f"the worker ended: status {status}")], PATIENCE)


def _lines(reading: int) -> Iterator[str]:
    """Lines from a worker, until it ends or keeps silent for too long."""
    rest = b""
    while select.select([reading], [], [], PATIENCE)[0]:
        block = os.read(reading, 1 << 16)
        if not block:
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from (line.decode() for line in lines)


def _end(child: int) -> None:
    """A worker that is still at work after its last line is stuck."""
    for _ in range(20):
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)


def _work(make: Callable[[int], Case], indexes: Sequence[int], writing: int) -> None:
    """The worker: an outcome a line, and the end of the process. It ends early after a breach."""
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        gc.freeze()
        status = 0
        for index in indexes:
            found = measured(make(index), index)
            os.write(writing, f"{json.dumps(_plain(found))}\n".encode())
            if any(f.sort in ("time", "memory") for f in found.faults):
                break
    finally:
        os._exit(status)


def _plain(found: Outcome) -> dict[str, Any]:
    faults = [[f.sort, f.where, f.text] for f in found.faults]
    return {"index": found.index, "faults": faults, "seconds": found.seconds, "megabytes": found.megabytes}


def _stop(signum: int, frame: Any) -> None:
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}" if frame else ""
    raise Stop(place)


def measured(case: Case, index: int = 0) -> Outcome:
    """One input under the alarm; one that was too slow is tried twice more, as neighbours slow a processor down too."""
    outcome = _measured(case, index)
    for _ in range(2):
        if any(fault.sort == "time" for fault in outcome.faults):
            outcome = _measured(case, index)
    return outcome


def limits(case: Case) -> tuple[float, int]:
    """The seconds of each command of a case, and its megabytes."""
    return LARGE[case.argv[0]] if case.kind == "large" and case.argv else (SECONDS, MEGABYTES)


def _measured(case: Case, index: int) -> Outcome:
    _forget_peak()
    seconds, megabytes = limits(case)
    resource.setrlimit(resource.RLIMIT_AS, (megabytes * 1_000_000, resource.getrlimit(resource.RLIMIT_AS)[1]))
    laps = [time.process_time()]
    faults: list[Fault] = []

    def lap() -> None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        laps.append(time.process_time())

    signal.signal(signal.SIGPROF, _stop)
    gc.disable()  # as the command line does
    try:
        lap()
        faults = tried(case, lap)
        signal.setitimer(signal.ITIMER_PROF, 0)
    except Stop as stop:
        faults = [Fault("time", str(stop), f"more than {seconds} s in {stop}")]
    except MemoryError:
        faults = [Fault("memory", "anywhere", f"more than {megabytes} MB")]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    laps.append(time.process_time())
    gc.enable()
    gc.collect()
    return Outcome(index, faults, max(b - a for a, b in itertools.pairwise(laps)), peak())


def _forget_peak() -> None:
    """The highest mark of memory starts anew. https://docs.kernel.org/filesystems/proc.html, clear_refs"""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak() -> float:
    """The most resident memory since the mark, in MB."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6
