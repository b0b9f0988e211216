"""The best evaluation of a run so far, and whether the run has waited long enough for a better one.

Turns the figures of evaluations, which are the same on all ranks, into decisions that are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardlang.runtime.program import Evaluation


@dataclass
class Best:
    """`value` at `step` is the best that `figure` was; `worse`: evaluations since then. A number
    that is not finite is never better."""

    setting: Evaluation
    value: float | None = field(default=None, init=False)
    step: int = field(default=0, init=False)
    worse: int = field(default=0, init=False)

    @property
    def figure(self) -> str:
        return self.setting.best or ""

    @property
    def word(self) -> str:
        return "lowest" if self.setting.lowest else "highest"

    def told(self, figures: Mapping[str, float], step: int) -> bool:
        """Whether an evaluation after a step is the best so far."""
        if self.setting.best is None:
            return False
        found = figures[self.figure]
        sign = 1 if self.setting.lowest else -1
        if math.isfinite(found) and (self.value is None or sign * found < sign * self.value):
            self.value, self.step, self.worse = found, step, 0
            return True
        self.worse += 1
        return False

    @property
    def over(self) -> bool:
        """Whether the run ends now."""
        return self.setting.patience is not None and self.worse >= self.setting.patience

    @property
    def so_far(self) -> str:
        """`lowest eval.loss 0.25 after step 40`; "" where there is none."""
        return (
            f"{self.word} eval.{self.figure} {self.value:.6g} after step {self.step}" if self.value is not None else ""
        )

    @property
    def why_over(self) -> str:
        """The reason that a run is told to end for."""
        count = f"{self.worse} evaluation{'s' * (self.worse > 1)}"
        if self.value is None:
            return f"`{self.figure}` was a finite number in none of {count}"
        was = f"`{self.figure}` was {self.word} after step {self.step} ({self.value:.6g})"
        return f"{was}, and {count} since then were no better; a run with a greater `patience` goes on"

    def kept(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        order = {"figure": self.figure, "lowest": self.setting.lowest}
        return {**order, "value": self.value, "step": self.step, "worse": self.worse}

    def resumed(self, kept: Any) -> bool:
        """Takes over what a checkpoint has; False where that is of another figure, and so of no
        use. TypeError or KeyError where it is nothing that `kept` gives."""
        if (kept["figure"], kept["lowest"]) != (self.figure, self.setting.lowest):
            return False
        value, step, worse = kept["value"], kept["step"], kept["worse"]
        if not (value is None or type(value) is float) or type(step) is not int or type(worse) is not int:
            raise TypeError(f"{kept!r} is no best evaluation")
        self.value, self.step, self.worse = value, step, worse
        return True
