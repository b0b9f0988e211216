"""The schedule of a run and a step -> the learning rate of that step.

A function of the user's own is asked for many steps at once, and all ranks compare what it says
before one of these steps is made."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from shardlang.errors import RunError
from shardlang.extensions.loaded import calling
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.primitives import exchanged
from shardlang.runtime.program import Linear, OwnSchedule, RunProgram, WarmupCosine

# Steps that ranks compare at once.
_AT_ONCE = 1000


def scheduled(base: float, schedule: Linear | None, step: int, total: int) -> float:
    """The learning rate of step `step` (from 1) of `total`: up to `base` at step `warmup` (1
    without), then down to `min` at the last. The formulas are in specs/schedules.md."""
    if schedule is None:
        return base
    peak, least = max(1, schedule.warmup), schedule.min
    if step <= peak:
        return base * (step / peak)
    progress = (step - peak) / (total - peak)
    cosine = isinstance(schedule, WarmupCosine)
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if cosine else 1.0 - progress
    return float(least + (base - least) * left)


def asked(function: Any, file: Path, step: int, total: int, lr: float, settings: Any) -> float:
    """The learning rate that a function of the user's gives; RunError SH621 where it is none."""
    called = f"`{getattr(function, '__name__', 'the schedule')}({step}, {total}, {lr:g})`"
    with calling("SH621", called, file):
        found = function(step, total, lr, **settings)
    if not isinstance(found, Real) or isinstance(found, bool):
        what = "None" if found is None else type(found).__name__
        raise RunError("SH621", f"{called} gives {what}, where a number is due", file=file)
    rate = float(found)
    if not math.isfinite(rate) or rate < 0:
        fact = f"{called} gives {rate:g}, and a learning rate is finite and at least 0"
        raise RunError("SH621", fact, file=file, help="steps count from 1, and the last is `total`")
    return rate


class LearningRates:
    """The learning rates of a run, by the base rates of its optimizers."""

    def __init__(self, program: RunProgram) -> None:
        self.schedule, self.base = program.lr_schedule, program.base
        self._known: dict[float, tuple[int, list[float]]] = {}

    def at(self, lr: float, step: int, total: int) -> float:
        """The rate of step `step` of `total`, where `lr` is the optimizer's. All ranks ask for
        it."""
        if not isinstance(self.schedule, OwnSchedule):
            return scheduled(lr, self.schedule, step, total)
        first, rates = self._known.get(lr, (0, []))
        if not 0 <= step - first < len(rates):
            first, rates = step, self._compared(self.schedule, lr, step, total)
            self._known[lr] = first, rates
        return rates[step - first]

    def _compared(self, schedule: OwnSchedule, lr: float, first: int, total: int) -> list[float]:
        """The rates of the next steps, the same on all ranks; RunError SH613 where they are not."""
        function, file = schedule.call.found(self.base), self.base / schedule.call.file
        steps = range(first, max(first, min(first + _AT_ONCE - 1, total)) + 1)
        rates = [asked(function, file, step, total, lr, schedule.settings) for step in steps]
        again = asked(function, file, first, total, lr, schedule.settings)
        if again != rates[0]:
            fact = f"rank {world.rank} gets two learning rates for step {first}, {rates[0]:.9g} and {again:.9g}"
            raise _differs(schedule, file, fact)
        mine = [rate.hex() for rate in rates]
        if len({*exchanged(hashlib.blake2b(" ".join(mine).encode(), digest_size=16).hexdigest())}) > 1:
            raise _differs(schedule, file, _unlike(exchanged(mine), first))
        return rates


def _unlike(told: Sequence[Sequence[str]], first: int) -> str:
    """The first learning rate, of those from step `first` on, in which a rank is not like rank
    0."""
    rank, rates = next((rank, rates) for rank, rates in enumerate(told) if rates != told[0])
    at = next(at for at, (here, there) in enumerate(zip(rates, told[0], strict=True)) if here != there)
    shown = [f"{float.fromhex(each[at]):.9g} on rank {of}" for each, of in ((rates, rank), (told[0], 0))]
    return f"the learning rate of step {first + at} is {shown[0]}, and {shown[1]}"


def _differs(schedule: OwnSchedule, file: Path, fact: str) -> RunError:
    help = "a schedule depends on `step`, `total`, `lr` and its settings alone"
    return RunError("SH613", f"{fact}, by `{schedule.call.name}`", file=file, help=help)
