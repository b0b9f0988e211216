"""The requests to a run: turns a signal that any rank has got, and what callbacks on rank 0 ask
for, into one step, the same on all ranks.

Every half a second or so, but at least each 64 steps, the ranks sum up what is asked. The sum
travels while steps go on, and all read it before the next one begins, so all know it at the same
step. (Between two sums a step costs a comparison.)"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import everyone, world
from shardlang.runtime.device import kind_of
from shardlang.terminal import signals

# Seconds between two sums, about, and steps at most.
_PAUSE, _MOST = 0.5, 64
# `save`, as SIGUSR1 asks, also ends the run with its own exit code.
ASKS = ("save", "stop", "checkpoint", "evaluate")


class StepRequests:
    """Asked after each step, by all ranks."""

    def __init__(self) -> None:
        self._next, self._since, self._at = 0, time.perf_counter(), 0
        self._coming: Callable[[], Tensor] | None = None
        self._mine: set[str] = set()

    def after(self, step: int, here: Collection[str] = ()) -> frozenset[str]:
        """Those of ASKS that are to be done after this step. here: what callbacks have asked this
        rank for since the step before."""
        self._mine.update(here)
        if signals.asked_to_save():
            self._mine.add("save")
        if world.size == 1:
            return self._taken()
        if step < self._next:
            return frozenset()
        *asked, every = self._coming().tolist() if self._coming is not None else (*[0] * len(ASKS), 1)
        self._next = step + int(every)
        mine = self._taken()
        numbers = [*(float(each in mine) for each in ASKS), self._pace(step) if world.rank == 0 else 0.0]
        sent = torch.tensor(numbers, dtype=torch.float64).to(world.device)
        self._coming = kind_of(world.device).fetched(primitives.begin_reduce(sent, everyone(), own=True).wait)
        return frozenset(each for each, count in zip(ASKS, asked, strict=True) if count)

    def _taken(self) -> frozenset[str]:
        mine = frozenset(self._mine)
        self._mine.clear()
        return mine

    def _pace(self, step: int) -> float:
        """Steps from one sum to the next, as rank 0 says for all."""
        now = time.perf_counter()
        each, self._since = (now - self._since) / max(1, step - self._at), now
        self._at = step
        return max(1.0, min(_MOST, _PAUSE // max(each, 1e-9)))
