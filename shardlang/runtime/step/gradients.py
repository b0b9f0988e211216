"""The gradients of a step, once backward has summed them: their norm over the whole model, whether
they are finite and so may update anything, and clipping.

One sum says all of it. It costs a pass over the gradients, and where parameters are cut a small
sum over all ranks: so it is made where something needs it, and the host waits for it only where
the step may be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from shardlang.facts.figures import GRAD_NORM
from shardlang.runtime.program import RunProgram
from shardlang.runtime.state import optimizers
from shardlang.runtime.step.loss_scale import LossScale


class StepGradients:
    """The gradients of what this rank trains. counted, whole: those that count in the norm, as
    `optimizers.squares` has it. states: they go back to what they were where a step is left out.

    skips: whether steps whose gradients are not finite are left out. skipped: how many steps of the
    run were. wanted: whether the norm is, though nothing in the step needs it; all ranks say the
    same. norm: that of the last step, where it was measured: a function that waits for it."""

    def __init__(
        self, program: RunProgram, trained: Sequence[Tensor], counted: Sequence[Tensor], whole: bool,
        states: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        self.trained, self.counted, self.whole, self.states = trained, counted, whole, states
        skips = program.not_finite == "skip"
        self.scale = LossScale(float(skips)) if program.precision == "f16" else None
        self.skips, self.skipped = skips or self.scale is not None, 0
        self.needed, self.wanted = self.skips or program.clip is not None or GRAD_NORM in program.late_from, False
        self.norm: Callable[[], Tensor] | None = None
        self._before: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Before a step."""
        if self.skips:
            self._before = {path: state.clone() for path, state in self.states.items()}

    def measure(self) -> Callable[[], Tensor]:
        """Starts the norm; all ranks call it."""
        coming = optimizers.squares(self.counted, self.whole, agreed=self.skips)
        return cache(lambda: coming.wait().sqrt())

    def fit(self) -> bool:
        """Takes the loss scale out of the gradients. Whether they are to update anything: not where
        they are not finite on some rank, and such steps are left out."""
        if self.scale is not None:
            self.scale.remove(self.trained)
        self.norm = self.measure() if self.needed or self.wanted else None
        if not self.skips or self.norm is None:
            return True
        fit = bool(self.norm().isfinite())
        if self.scale is not None:
            self.scale.next(fit)
        for path, state in self.states.items() if not fit else ():
            state.copy_(self._before[path])
        self.skipped += not fit
        return fit

    @torch.no_grad()
    def clip(self, limit: float, norm: Tensor) -> Tensor:
        """Scales them so that their norm, which is now `norm`, is at most `limit`; the norm."""
        optimizers.clip(self.trained, limit, norm)
        return norm
