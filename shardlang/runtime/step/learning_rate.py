"""The schedule of a run and a step -> the learning rate of that step."""

from __future__ import annotations

import math

from shardlang.runtime.program import Linear, WarmupCosine


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
