"""A question to the store of the run -> its answer within seconds, or that there is none.

Where the store's process is stopped, or its host is gone without a word, torch waits for it for
half an hour. A rank that watches over others has no time for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

# Seconds that an answer may take. A store that is only slow is asked again.
PATIENCE = 2.0


class NoAnswer(Exception):
    """The store does not answer, for now."""


class Answers:
    """The store of the run; each question is put by a thread of its own, one at a time, which stays
    where the store is silent. DistError where the store is known to be gone."""

    def __init__(self, store: dist.Store) -> None:
        self.store = store
        self._asking: threading.Thread | None = None
        self._turn = threading.Lock()

    def _of(self, question: Callable[[], Any]) -> Any:
        with self._turn:
            return self._asked(question)

    def _asked(self, question: Callable[[], Any]) -> Any:
        found: list[Any] = []
        failed: list[dist.DistError] = []

        def ask() -> None:
            try:
                found.append(question())
            except dist.DistError as error:
                failed.append(error)

        if self._asking is not None:
            self._asking.join(PATIENCE)
            if self._asking.is_alive():
                raise NoAnswer
        self._asking = threading.Thread(target=ask, name="ask", daemon=True)
        self._asking.start()
        self._asking.join(PATIENCE)
        if failed:
            raise failed[0]
        if not found:
            raise NoAnswer
        return found[0]

    def has(self, key: str) -> bool:
        """Whether somebody has set it."""
        return bool(self._of(lambda: self.store.check([key])))

    def count(self, key: str) -> int:
        """How many have asked this, with the one that asks now."""
        return int(self._of(lambda: self.store.add(key, 1)))

    def set(self, key: str, value: str) -> None:
        self._of(lambda: self.store.set(key, value) or True)
