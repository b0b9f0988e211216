"""Temporary folders that go with the command that made them, and those that killed commands left
behind.

A lock of the system is on a file in each while its command lives; whoever makes the next folder
removes those of this user whose lock is free."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shardlang.terminal import signals

_PREFIX, _LOCK = "shardc-", ".shardlang-scratch"


@dataclass
class Scratch:
    """A temporary folder. kept: it is for the user, and stays."""

    path: Path
    kept: bool = False


@contextmanager
def scratch(purpose: str) -> Iterator[Scratch]:
    """A new folder whose name says what for."""
    sweep()
    with ExitStack() as stack:
        with signals.held():
            made = Scratch(Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-")))
            stack.enter_context(signals.at_once(lambda: _end(made)))
            stack.callback(_end, made)
            # It gets its name when it is locked: another command's sweep may come between.
            begun = made.path / f"{_LOCK}-begun"
            lock = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            stack.callback(os.close, lock)
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            begun.rename(made.path / _LOCK)
        yield made


def _end(made: Scratch) -> None:
    with signals.held():
        if made.kept:
            (made.path / _LOCK).unlink(missing_ok=True)
        else:
            shutil.rmtree(made.path, ignore_errors=True)


def sweep() -> None:
    """Removes this user's folders whose commands are no more: their locks can be had."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        with suppress(OSError):
            if left.is_symlink() or left.stat().st_uid != os.getuid():
                continue
            lock = os.open(left / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
