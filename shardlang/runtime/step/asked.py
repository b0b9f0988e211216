"""Whether a run is to save and end: turns a signal that any rank has got into one step, the same on
all ranks.

Every half a second or so, but at least each 64 steps, the ranks sum up who has got it. The sum
travels while steps go on, and all read it before the next one begins, so all know it at the same
step. (Between two sums a step costs a comparison.)"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from shardlang import ending
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import everyone, world
from shardlang.runtime.device import kind_of

# Seconds between two sums, about, and steps at most.
_PAUSE, _MOST = 0.5, 64


class Asked:
    """Asked after each step, by all ranks."""

    def __init__(self) -> None:
        self._next, self._since, self._at = 0, time.perf_counter(), 0
        self._coming: Callable[[], Tensor] | None = None

    def after(self, step: int) -> bool:
        """Whether the run is to save and end after this step."""
        if world.size == 1:
            return ending.asked_to_save()
        if step < self._next:
            return False
        asked, every = self._coming().tolist() if self._coming is not None else (0, 1)
        self._next = step + int(every)
        numbers = [float(ending.asked_to_save()), self._pace(step) if world.rank == 0 else 0.0]
        mine = torch.tensor(numbers, dtype=torch.float64).to(world.device)
        self._coming = kind_of(world.device).fetched(primitives.begin_reduce(mine, everyone()).wait)
        return bool(asked)

    def _pace(self, step: int) -> float:
        """Steps from one sum to the next, as rank 0 says for all."""
        now = time.perf_counter()
        each, self._since = (now - self._since) / max(1, step - self._at), now
        self._at = step
        return max(1.0, min(_MOST, _PAUSE // max(each, 1e-9)))
