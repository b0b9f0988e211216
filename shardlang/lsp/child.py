"""Work that takes long -> a process of its own, whose results come as they are made, and that the
next key ends."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from struct import Struct
from typing import Any

from shardlang.terminal.signals import die_with_parent

_LENGTH = Struct(">Q")


class PlanningProcess:
    """A process that works for one open file; it is ended before the next begins."""

    def __init__(self) -> None:
        self._pid = 0
        self._pipe = -1
        self._read = bytearray()
        self._ended: Callable[[], object] = lambda: None

    def start(
        self, work: Callable[[], Iterator[object]], take: Callable[[Any], None],
        ended: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """Does the work in a fork of this process; `take` gets each result here. ended: is called
        when there are no more, also where it is stopped."""
        self.stop()
        read, write = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            os.close(read)
            _do(work, write, parent)
        os.close(write)
        os.set_blocking(read, False)
        self._pid, self._pipe, self._read, self._ended = pid, read, bytearray(), ended
        asyncio.get_running_loop().add_reader(read, self._readable, take)

    def _readable(self, take: Callable[[Any], None]) -> None:
        try:
            some = os.read(self._pipe, 1 << 20)
        except BlockingIOError:
            return
        if not some:
            self.stop()
        self._read += some
        while len(self._read) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._read)[0]
            if len(self._read) < end:
                return
            found = pickle.loads(self._read[_LENGTH.size : end])  # of our own fork
            del self._read[:end]
            take(found)

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._pid:
            with suppress(RuntimeError):  # the loop has ended
                asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
            self._ended()


def _do(work: Callable[[], Iterator[object]], pipe: int, parent: int) -> None:
    """The life of the child: it never returns, and touches nothing of the protocol."""
    code = 1
    try:
        gc.disable()  # as in every command: nothing of a plan is garbage before it ends
        die_with_parent(parent)
        for each in work():
            packed = pickle.dumps(each)
            with open(pipe, "wb", closefd=False) as stream:
                stream.write(_LENGTH.pack(len(packed)) + packed)
        code = 0
    finally:
        os._exit(code)
