"""How a command ends before its time: Ctrl-C, a request to end (SIGTERM), a closed terminal
(SIGHUP).

The first of them is an exception, so that what must be cleaned up is. A further one while that goes
on ends the process at once: what was registered with `at_once` is still done. A signal that is
ignored at the start, as `nohup` does, stays ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

FAILED = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What is to be done however the process ends, the last first.
_due: list[Callable[[], None]] = []
_come: list[int] = []
_holds: list[bool] = []
_waiting: list[int] = []


class Interrupted(KeyboardInterrupt):
    """One of SIGNALS has come; the text is its name."""


def watch() -> None:
    """From now on SIGNALS end this process as is said above."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


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
    _come.append(number)
    if len(_come) == 1:
        raise Interrupted(signal.Signals(number).name)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for undo in reversed(_due):
        with suppress(Exception):
            undo()
    os._exit(FAILED)
