"""A function -> seconds of a call of it: the median of 7 turns after warming. A spread of more than
a tenth is measured again, then counted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

TURNS = 7
# A turn takes at least so long, by several calls.
_LEAST = 1e-3
# A call that takes longer has fewer turns.
_LONG = 0.2
_UNEVEN = 0.1
Points = list[tuple[float, float]]


@dataclass
class Clock:
    """Measures on one kind of device. calls: measured so far; uneven: those whose middle half was
    further than a tenth of the median apart, twice."""

    device: torch.device
    calls: int = 0
    uneven: int = 0

    @property
    def kind(self) -> str:
        """The column of the tables of sizes."""
        return "cpu" if self.device.type == "cpu" else "accelerator"

    def wait(self) -> None:
        """Returns once the device has done all that it was given."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def seconds(self, call: Callable[[], object]) -> float:
        """Seconds of one call."""
        call()
        first = self._turn(call, 1)
        if first > _LONG:
            return min(first, self._turn(call, 1))
        repeats = max(1, round(_LEAST / max(first, 1e-7)))
        self.calls += 1
        found, spread = self._turns(call, repeats)
        if spread > _UNEVEN:
            again, spread = self._turns(call, repeats)
            found = min(found, again)
            self.uneven += spread > _UNEVEN
        return found

    def together(self, call: Callable[[], object], repeats: int) -> float:
        """Seconds of a call that every rank makes equally often: so many in each turn."""
        call()
        self.calls += 1
        found, spread = self._turns(call, repeats)
        self.uneven += spread > _UNEVEN
        return found

    def _turns(self, call: Callable[[], object], repeats: int) -> tuple[float, float]:
        """The median turn, and the middle half's width as a part of it."""
        found = sorted(self._turn(call, repeats) for _ in range(TURNS))
        return statistics.median(found), (found[-2] - found[1]) / statistics.median(found)

    def _turn(self, call: Callable[[], object], repeats: int) -> float:
        self.wait()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        self.wait()
        return max(time.perf_counter() - start, 1e-9) / repeats


def rising(points: Points) -> Points:
    """Points of which none takes less than a smaller one, as noise may have it: a profile says that
    more is never faster."""
    found: Points = []
    for size, seconds in points:
        found.append((size, max(seconds, found[-1][1] if found else 0.0)))
    return found


def microseconds(points: Points) -> list[list[float]]:
    """Points as a profile has them."""
    return [[size, float(f"{seconds * 1e6:.4g}")] for size, seconds in rising(points)]
