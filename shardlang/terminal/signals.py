"""How a command ends before its time: Ctrl-C, a request to end (SIGTERM), a closed terminal
(SIGHUP).

The first of them is an exception, so that what must be cleaned up is. But where ranks that write
checkpoints run, a first Ctrl-C is a request to save, as SIGUSR1 is. A further signal while that
goes on ends the process at once: what was registered with `at_once` is still done. A signal that is
ignored at the start, as `nohup` does, stays ignored.

SIGUSR1 asks a run that writes checkpoints to save and end at the end of its step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

FAILED = 3
# The exit code of a run that has saved and ended as SIGUSR1 asks: it is to be started again.
SAVED = 75
_PR_SET_PDEATHSIG = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What is to be done however the process ends, the last first.
_due: list[Callable[[], None]] = []
_come: list[int] = []
_holds: list[bool] = []
_waiting: list[int] = []
_save: list[int] = []
_heard: list[int] = []
_asked: list[Callable[[int, FrameType | None], None]] = []
_SAVES = b"\nCtrl-C: the run saves after this step and ends; a second Ctrl-C ends it at once\n"
_SAVES_NOTHING = b"SIGUSR1 saves nothing, as the program sets no `checkpoint`; the run goes on\n"


class SavedAndEnded(Exception):
    """The run has saved and ends, as SIGUSR1 asks; the text says after which step."""


def hold_save() -> None:
    """From now on SIGUSR1 waits until it is heeded."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))


def heed_save(saves: bool, then: Callable[[], None] | None = None) -> None:
    """From now on SIGUSR1 asks to save and end. saves: else it is only said, once, that the run
    goes on. then: what else is done at once; so it is where a first Ctrl-C asks too."""

    def asked(number: int, _: FrameType | None) -> None:
        if not saves and not _save:
            _say(_SAVES_NOTHING)
        _save.append(number)
        if then is not None:
            then()

    _asked[:] = [asked] if saves and then is not None else []
    signal.signal(signal.SIGUSR1, asked)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1,))


@contextmanager
def save_heeded(saves: bool) -> Iterator[None]:
    """Heeds SIGUSR1 meanwhile, and forgets it afterwards."""
    before = signal.getsignal(signal.SIGUSR1)
    heed_save(saves)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)
        _save.clear()
        _asked.clear()


def saved() -> int:
    """The exit code of a run that has saved and ended as it was asked: it is to be started again,
    but not where somebody has pressed Ctrl-C."""
    return FAILED if signal.SIGINT in _save else SAVED


def _say(text: bytes) -> None:
    with suppress(OSError):  # on a full disk
        os.write(2, text)  # `print` may be what was interrupted


def asked_to_save() -> bool:
    """Whether SIGUSR1 has come."""
    return bool(_save)


class Interrupted(KeyboardInterrupt):
    """One of SIGNALS has come; the text is its name."""


def watch() -> None:
    """From now on SIGNALS end this process as is said above."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def heard() -> int:
    """From now on SIGTERM does not end this process: `has_come` tells it of the descriptor that is
    returned, to a thread that ends the process once it has said what it must."""
    mine, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        # In this order: no signal comes to the handler, which does nothing, before it is written
        # down.
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        _heard.append(mine)
    return mine


def has_come(heard: int) -> bool:
    """Whether SIGTERM has come since this was last asked."""
    with suppress(BlockingIOError):
        return signal.SIGTERM in os.read(heard, 1 << 16)
    return False


def unheard() -> None:
    """SIGTERM ends this process again, also one that has come and that nobody has asked for."""
    if _heard:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        if has_come(_heard.pop()):
            os.kill(os.getpid(), signal.SIGTERM)


def over() -> None:
    """All is done and the exit code is known: no signal changes it any more."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def in_rank() -> None:
    """In a forked rank: signals of the terminal go to the process that watches over the ranks."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _due.clear()
    _waiting.clear()


@contextmanager
def at_once(undo: Callable[[], None]) -> Iterator[None]:
    """Has `undo` done if the process is ended at once. It may be in the middle of the same then."""
    _due.append(undo)
    try:
        yield
    finally:
        with suppress(ValueError):
            _due.remove(undo)


@contextmanager
def held() -> Iterator[None]:
    """Runs a short piece of work without interruption: a signal meanwhile counts after it."""
    _holds.append(True)
    try:
        yield
    finally:
        _holds.pop()
        if _waiting and not _holds:
            number, *further = _waiting
            _waiting.clear()
            _come.extend(further)
            _end(number, None)


def _end(number: int, _: FrameType | None) -> None:
    if _holds:
        _waiting.append(number)
        return
    if number == signal.SIGINT and _asked and not _save and not _come:
        _asked[0](number, None)
        return _say(_SAVES)  # a second one counts from here on
    _come.append(number)
    if len(_come) == 1:
        raise Interrupted(signal.Signals(number).name)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for undo in reversed(_due):
        with suppress(Exception):
            undo()
    os._exit(FAILED)


def die_with_parent(parent: int) -> None:
    """Has the system end this process with the one that started it, also if that was quick."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
