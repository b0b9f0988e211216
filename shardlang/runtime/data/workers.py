"""Reads the batches of a data source of the user's own ahead, in processes of their own.

Each process has at most one batch to make, so that neither waits for the other to take what it
sends. Batches come back in order."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from shardlang.errors import RunError
from shardlang.runtime.data.own import OwnDataset, Window

# How often a process that has nothing to do looks whether its rank is still there, in seconds.
_LOOK = 1.0


class Ahead:
    """The processes that read ahead; they end with the rank."""

    def __init__(self, data: OwnDataset, workers: int) -> None:
        self.data = data
        # A stream is read forward, and so by one.
        self.ends = [_started(data) for _ in range(workers if data.shuffled else 1)]
        self.asked: deque[Connection] = deque()

    def windows(self, epoch: int, batches: Iterable[np.ndarray]) -> Iterator[Window]:
        """The examples of each batch, in order."""
        while self.asked:  # what an epoch that was broken off has asked for
            self._next()
        coming, waiting = iter(batches), deque[np.ndarray]()
        for number in range(len(self.ends)):
            self._ask(self.ends[number], epoch, coming, waiting)
        while waiting:
            end, numbers = self.asked[0], waiting.popleft()
            arrays = self._next()
            self._ask(end, epoch, coming, waiting)
            yield numbers, arrays

    def _ask(self, end: Connection, epoch: int, coming: Iterator[np.ndarray], waiting: deque[np.ndarray]) -> None:
        numbers = next(coming, None)
        if numbers is not None:
            try:
                end.send((epoch, numbers))
            except OSError:
                raise self._ended() from None
            self.asked.append(end)
            waiting.append(numbers)

    def _next(self) -> Any:
        try:
            found = self.asked.popleft().recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(found, dict):
            return found
        code, message, file, line, help = found
        raise RunError(code, message, file=Path(file) if file else None, line=line, help=help)

    def _ended(self) -> RunError:
        fact = f"a process that reads ahead for `{self.data.name}` has ended"
        return self.data.wrong(fact, "`workers = 0` reads in the rank itself")


def _started(data: OwnDataset) -> Connection:
    """This end of a new process."""
    mine, theirs = multiprocessing.Pipe()
    rank = os.getpid()
    if os.fork() == 0:
        mine.close()
        _work(data, theirs, rank)
    theirs.close()
    return mine


def _work(data: OwnDataset, end: Connection, rank: int) -> NoReturn:
    code = 1
    # The threads of a rank that has computed are not here, and a sum over several would wait for
    # them.
    torch.set_num_threads(1)
    try:
        while os.getppid() == rank:
            if not end.poll(_LOOK):
                continue
            epoch, numbers = end.recv()
            try:
                end.send(dict(data.fetch(epoch, numbers)) if len(numbers) else {})
            except RunError as error:
                file = str(error.file) if error.file is not None else ""
                end.send((error.code, error.message, file, error.line, error.help))
        code = 0
    finally:
        os._exit(code)
