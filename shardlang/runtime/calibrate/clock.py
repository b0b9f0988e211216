"""A function -> seconds of a call of it: the median of 7 turns after warming. A spread of more than
a tenth is measured again, then counted. When most of the time for all measurements is over, each
has one turn; when all of it is, measuring ends."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shardlang.errors import RunError

TURNS = 7
# Seconds within which all measurements of a machine are to be made.
LIMITS = {"cpu": 120.0, "accelerator": 300.0}
# The part of them in which each has all its turns.
_CAREFUL = 0.75
# A turn takes at least so long, by several calls.
_LEAST = 1e-3
# A call that takes longer has fewer turns.
_LONG = 0.2
_UNEVEN = 0.1
Points = list[tuple[float, float]]


@dataclass
class Clock:
    """Measures on one kind of device. begun: when the measurements of the machine began, by
    time.monotonic(); None: they may take as long as they do. calls: measured so far; uneven: those
    whose middle half was further than a tenth of the median apart, twice; hurried: those of one
    turn."""

    device: torch.device
    begun: float | None = None
    calls: int = 0
    uneven: int = 0
    hurried: int = 0

    @property
    def kind(self) -> str:
        """The column of the tables of sizes."""
        return "cpu" if self.device.type == "cpu" else "accelerator"

    @property
    def left(self) -> float:
        """Seconds until all must have been measured."""
        return math.inf if self.begun is None else self.begun + LIMITS[self.kind] - time.monotonic()

    @property
    def turns(self) -> int:
        """How often what begins now is to be measured."""
        return TURNS if self.left > (1 - _CAREFUL) * LIMITS[self.kind] else 1

    def wait(self) -> None:
        """Returns once the device has done all that it was given."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def require_time(self) -> None:
        """SH516 where there is none left."""
        if self.left <= 0:
            fact = f"measuring is not done after {LIMITS[self.kind]:.0f} s, {self.calls} measurements"
            raise RunError("SH516", fact, help="end what else runs on this machine, or measure with fewer ranks")

    def seconds(self, call: Callable[[], object]) -> float:
        """Seconds of one call."""
        call()
        first = self.turn(call, 1)
        if first > _LONG:
            return min(first, self.turn(call, 1))
        repeats = max(1, round(_LEAST / max(first, 1e-7)))
        self.calls += 1
        found, spread = self._median(call, repeats, self.turns)
        if spread > _UNEVEN:
            again, spread = self._median(call, repeats, self.turns)
            found = min(found, again)
            self.uneven += spread > _UNEVEN
        return found

    def together(self, call: Callable[[], object], repeats: int, turns: int) -> float:
        """Seconds of a call that every rank makes equally often: so many in each turn."""
        call()
        self.calls += 1
        found, spread = self._median(call, repeats, turns)
        self.uneven += spread > _UNEVEN
        return found

    def _median(self, call: Callable[[], object], repeats: int, turns: int) -> tuple[float, float]:
        """The median turn, and the middle half's width as a part of it."""
        found = sorted(self.turn(call, repeats) for _ in range(turns))
        self.hurried += turns == 1
        return statistics.median(found), (found[-2] - found[1]) / statistics.median(found) if turns > 1 else 0.0

    def turn(self, call: Callable[[], object], repeats: int) -> float:
        """Seconds of one call, of so many."""
        self.require_time()
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
    return [[size, in_digits(seconds)] for size, seconds in rising(points)]


def in_digits(seconds: float) -> float:
    """Microseconds in the four digits that a profile has of them."""
    return float(f"{seconds * 1e6:.4g}")
