"""All that takes part in the steps of a program on this rank: its model, the passes over a batch,
the figures of a step and of an evaluation, and the process groups of all of them.

The training loop of an emitted program (train.py) and a loop that the user writes (shardlang.torch)
both step by this, and differ in what they do around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from shardlang.runtime import compiled, random
from shardlang.runtime.comm.collectives import LateGradients
from shardlang.runtime.comm.mesh import everyone, world
from shardlang.runtime.comm.record import record
from shardlang.runtime.data.loader import Batch
from shardlang.runtime.device import kind_of
from shardlang.runtime.program import RunProgram
from shardlang.runtime.step.microbatches import Accumulation
from shardlang.runtime.step.model import RankModel
from shardlang.runtime.step.pipeline import PipelineRunner
from shardlang.runtime.step.totals import Totals, WholeSet


class Stepper:
    """step: the steps that have begun. pause: seconds for which a step's figures may be held
    back."""

    def __init__(self, program: RunProgram, pause: float = 0.0) -> None:
        self.program, self.step = program, 0
        self.enter()
        self.model = RankModel(program)
        shown = {"loss": program.loss_pending, **program.metrics_pending}
        self.figures = Totals(program.mesh, shown, stages=program.stage_axis, pause=pause)
        kept = [field.name for field in program.predicted]
        self.evaluated = Totals(program.mesh, program.eval_pending, (2,), program.stage_axis, listed=kept)
        passes = Accumulation if program.pipeline is None else PipelineRunner
        self.passes: Accumulation | PipelineRunner = passes(program, self.model, self.figures, self.evaluated)
        self._connect()

    def enter(self) -> None:
        """Makes this program that of the process, as far as it can have one at a time only."""
        program = self.program
        random.start(program.seed, self.step)
        compiled.start(program)
        kind = kind_of(world.device)
        record.ahead(kind.apart)
        kind.round_products(program.precision == "tf32")
        # A backward in two parts computes the gradients of weights later anyhow.
        split = program.pipeline is not None and program.pipeline.splits_backward
        LateGradients.on = kind.overlaps and not split

    def _connect(self) -> None:
        """Makes the process groups of a step, and of what is saved."""
        program, listed = self.program, [(self.program.mesh, self.program.groups), *self.program.further_meshes]
        groups = [mesh[tuple(axes)] for mesh, own in listed for axes in own]
        totals = [self.figures.group, *([self.evaluated.group] if program.eval is not None else [])]
        channels: set[tuple[int, int]] = set()
        if isinstance(self.passes, PipelineRunner):
            channels = self.passes.channels
        host = any(parameter.place == "host" for parameter in program.parameters)
        # At the end the memory of all ranks is compared with the plan's.
        measures, whole = kind_of(world.device).measures, self.model.gradients.whole
        wanted = program.checkpoint is not None or program.calls or program.asks or measures or not whole
        everywhere = [everyone()] if wanted else []
        world.open([*groups, *totals, *everywhere, *self.model.groups()], channels, host)

    def begin(self) -> None:
        """The next step begins."""
        self.step += 1
        random.at_step(self.step)
        record.at_step(self.step)
        self.model.gradients.begin()

    @torch.no_grad()
    def evaluation(
        self, batches: Iterable[tuple[Batch, int]],
        keep: Callable[[Mapping[str, Sequence[Tensor]], int], None] | None = None,
    ) -> dict[str, float]:  # fmt: skip
        """The figures of a whole set, by name. batches: each with its number of real rows; all
        ranks must call it with as many. keep: takes what the program keeps of each batch."""
        assert self.program.finish is not None
        whole = WholeSet(self.evaluated, self.program.eval_joined)
        for batch, rows in batches:
            values = dict(self.passes.evaluate(batch, rows))
            kept = {field.name: values.pop(field.name, []) for field in self.program.predicted}
            if keep is not None:
                keep(kept, rows)
            whole.add(values)
        return {name: float(value) for name, value in self.program.finish(whole.totals()).items()}
