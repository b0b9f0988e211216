"""Work -> a process of its own that does it: a fork of this one, or a new Python where a fork could
not.

A fork starts at once and has all that this process has. But once autograd or CUDA keeps threads
here, torch refuses to compute gradients in a fork. A new Python is then sent the work by
cloudpickle, which also takes functions that a notebook's cells define."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from shardlang.errors import RunError, lacking
from shardlang.runtime import device
from shardlang.terminal import signals

_PF_FORKNOEXEC = 0x40  # proc_pid_stat(5), field 9; include/linux/sched.h
_OMP_PAUSE_HARD = 2  # https://www.openmp.org/spec-html/5.0/openmpsu154.html
# What a new Python runs: the paths of its modules, and the file with the work.
_BEGIN = "import sys; sys.path[:] = {paths!r}; from {module} import taken; taken({parent}, {file})"


def threaded() -> str:
    """The reason, in words, why a fork of this process could not compute gradients; "" where it
    can."""
    if why := device.used():
        return why
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            if (thread / "comm").read_text().startswith("pt_autograd"):
                return "computed gradients"
    return ""


def ended(status: int) -> str:
    """How a process has ended, in words. status: its exit code, or less the signal's number."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"


def begin(work: Callable[[], None], keeps: Sequence[int], closes: Sequence[int], gradients: bool = True) -> int:
    """Starts a process that does `work()` and ends, with this one at the latest; its id.

    keeps: open files that it has by the same numbers; closes: those that it must not have;
    gradients: whether it computes gradients, or on a GPU. It ends with 0, or with 1 where `work`
    raises, of which nothing is told. RunError SH503 where it has to be a new Python and the work
    cannot be sent to one."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    if gradients and (why := threaded()):
        return _fresh(work, keeps, parent, why)
    pid = fork()
    if pid == 0:
        for descriptor in closes:
            os.close(descriptor)
        # Nothing of what was there is finalised: sockets and threads of a notebook are not ours.
        gc.freeze()
        _do(work, parent)
    return pid


def fork() -> int:
    """os.fork(), of a process that may have computed. The threads that OpenMP keeps for this one
    end first: they would not be in the fork, where a sum over two threads would wait for them for
    ever. Here it makes new ones when it needs some.

    A process that is `forked` may have threads in mind that only the one before it has: to end
    those would wait for ever too. They are left, so what is forked there computes with one."""
    if not forked():
        for pause in _pauses():
            pause(_OMP_PAUSE_HARD)
    return os.fork()


def forked() -> bool:
    """Whether this process is a fork of another one, and has begun no program since."""
    flags = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6]
    return bool(int(flags) & _PF_FORKNOEXEC)


def threads(ranks: int) -> int:
    """With how many threads each of so many ranks that are forked here computes on a CPU."""
    return 1 if forked() else max(1, len(os.sched_getaffinity(0)) // ranks)


def take_threads(count: int) -> None:
    """Computes with so many threads on a CPU, where OMP_NUM_THREADS does not say it."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count)


def _pauses() -> list[Callable[[int], int]]:
    """The function that does so, of each GNU library of OpenMP that this process has loaded, but of
    those older than OpenMP 5. Other libraries care for forks themselves."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line)
    found = [getattr(ctypes.CDLL(path), "omp_pause_resource_all", None) for path in paths if Path(path).exists()]
    return [pause for pause in found if pause is not None]


def _do(work: Callable[[], None], parent: int) -> None:
    """The life of the process; never returns."""
    code = 1
    try:
        signals.die_with_parent(parent)
        # Makes torch's pool of threads anew. Else threads of autograd do, several at once, and one
        # finds none.
        torch.set_num_threads(1)
        work()
        code = 0
    finally:
        os._exit(code)


def _fresh(work: Callable[[], None], keeps: Sequence[int], parent: int, why: str) -> int:
    file = os.memfd_create("work")
    try:
        with open(file, "wb", closefd=False) as sent:
            sent.write(_sent(work, why))
        os.lseek(file, 0, os.SEEK_SET)
        code = _BEGIN.format(paths=sys.path, module=__name__, parent=parent, file=file)
        kept = [(os.POSIX_SPAWN_DUP2, descriptor, descriptor) for descriptor in (file, *keeps)]
        return os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ, file_actions=kept)
    finally:
        os.close(file)


def _sent(work: Callable[[], None], why: str) -> bytes:
    """The work as bytes."""
    try:
        import cloudpickle
    except ImportError as error:
        raise lacking(error, f"a function that runs in a new process, as this one has {why},") or error from error
    try:
        return bytes(cloudpickle.dumps(work))
    except Exception as error:
        fact = f"this process has {why}, so a function runs in a new one, and it cannot be sent there: {error}"
        help = "call it before that (in a notebook: restart the kernel first), or use torchrun"
        raise RunError("SH503", fact, help=help) from error


def taken(parent: int, file: int) -> None:
    """In a new Python: does the work that a file holds. Only `begin` writes such a file."""
    with open(file, "rb") as sent:
        work = pickle.loads(sent.read())
    _do(work, parent)
