"""Interleaved timings of two or more commands: the runs take turns, so a drift of the machine falls on all of them.

Gives medians and spreads, and the ratio turn by turn. What the commands are is left to the scripts beside this file.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of each counted run of one thing."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        return f"{self.median:.3f} s (from {min(self.seconds):.3f} to {max(self.seconds):.3f})"


def interleave(runs: Mapping[str, Callable[[], float]], turns: int, warmup: int = 1) -> dict[str, Timing]:
    """Call each function in turn, `turns` times after `warmup` uncounted turns; each returns seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warmup + turns):
        for name, run in runs.items():
            took = run()
            if turn >= warmup:
                seconds[name].append(took)
    return {name: Timing(tuple(taken)) for name, taken in seconds.items()}


def process(command: Sequence[str]) -> Callable[[], float]:
    """A function that runs a command as a process and returns its wall seconds; a failure ends the benchmark."""

    def run() -> float:
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        took = time.perf_counter() - start
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return took

    return run


def ratios(timings: Mapping[str, Timing], ours: str, other: str) -> tuple[float, ...]:
    """The ratio of each turn, ours over the other's."""
    return tuple(a / b for a, b in zip(timings[ours].seconds, timings[other].seconds, strict=True))


def verdict(label: str, values: Sequence[float], limit: float, judged: bool = True) -> bool:
    """Print the median ratio against its limit, with the spread of the middle half; returns whether it holds, or is
    not judged.
    """
    middle = statistics.median(values)
    low, high = (sorted(values)[round((len(values) - 1) * share)] for share in (0.25, 0.75))
    held = middle <= limit
    word = "not judged" if not judged else "held" if held else "MISSED"
    print(f"{label}: ratio {middle:.3f} (limit {limit:.2f}, spread {low:.3f}-{high:.3f}): {word}", flush=True)
    return held or not judged
