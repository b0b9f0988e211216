"""A whole run on simulated ranks in one process: the runtime's loop, with the plan's ranks in the
place of its model.

Data, figures, evaluation and saving are those of the program emitted for one rank, which is where
the simulated ranks' parameters are put together after each step. Evaluation so runs on one device,
from what the ranks have trained."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from shardlang.disk.locks import Claims
from shardlang.disk.overwrite_guard import FIGURES, WEIGHTS
from shardlang.errors import RunError
from shardlang.interpret.meaning.call import ELEMENTS
from shardlang.interpret.ranks import ranks
from shardlang.interpret.ranks.coordinates import groups_of
from shardlang.interpret.ranks.optimizers import Optimizers
from shardlang.interpret.ranks.ranks import Locals
from shardlang.interpret.ranks.stored import storage
from shardlang.interpret.ranks.turns import require_ends
from shardlang.plan.plan import Plan
from shardlang.plan.reads import final_form, layout_of
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.data.loader import Batch
from shardlang.runtime.launch.launcher import read_program
from shardlang.runtime.logs import Log
from shardlang.runtime.program import RunProgram
from shardlang.runtime.step.microbatches import Accumulation
from shardlang.runtime.step.resume import claim_of_program
from shardlang.runtime.step.totals import Pending
from shardlang.runtime.step.train import TrainingRun, datasets
from shardlang.terminal.signals import FAILED


class Simulated(Accumulation):
    """Runs a step on all simulated ranks; `kept` has each rank's parameters and states."""

    def __init__(self, plan: Plan, run: TrainingRun) -> None:
        super().__init__(run.program, run.model, run.figures, run.evaluated)
        self.plan, self.run = plan, run
        self.optimizers = Optimizers(plan, run.total)
        self.paths = {v: plan.graph.values[v].path for v in (*plan.graph.params, *plan.graph.states)}
        whole = {**run.model.leaves, **run.model.states}
        self.kept: dict[int, Locals] = ranks.store(plan, {v: whole[path].detach() for v, path in self.paths.items()})
        self.reduced: Mapping[int, Locals] = {}
        self.states: Mapping[int, Locals] = {}  # before the step
        self.rows: Mapping[int, Tensor] = {}

    def step(self, batch: Batch) -> Pending:
        """Forward and backward on all ranks; the figures of the step."""
        graph = self.plan.graph
        types = (ELEMENTS[graph.values[v].type.dtype] for v in graph.data)
        fields = {v: x.to(t) for v, x, t in zip(graph.data, batch[0].values(), types, strict=True)}
        mine = ranks.run(self.plan, fields, self.kept, step=self.run.step, seed=self.program.seed, inner=False)
        self.states = {value: self.kept[value] for value in mine.states}
        self.kept = {**self.kept, **mine.states}
        self.reduced, self.rows = mine.stored, self.optimizers.looked_up(mine.parts_of)
        assert graph.loss is not None
        figures = {"loss": graph.loss, **graph.metrics}
        return self.figures.start({name: self._figure(value, mine) for name, value in figures.items()})

    def _figure(self, value: int, mine: ranks.RankResults) -> Tensor:
        """A loss or metric: the sum over the first of the groups on which it is pending; all groups
        have the same."""
        form = final_form(self.plan, value)
        layout = layout_of(self.plan, form)
        first = groups_of(self.plan.meshes[layout.mesh], layout.pending)[0]
        return torch.stack([mine.forms[form][rank].double() for rank in first]).sum(0)

    @torch.no_grad()
    def update(self, step: int, total: int) -> bool:
        """A step of the optimizers on all ranks, if there is one; the result is joined for
        evaluation and saving."""
        gradients, norm = self.model.gradients, self.optimizers.norm(self.reduced)
        gradients.norm = lambda: torch.tensor(norm)
        changed = self.optimizers.stored(self.kept, self.reduced, self.rows)
        if self.optimizers.leaves_out(norm):
            gradients.skipped = self.optimizers.skipped
            self.kept = {**self.kept, **self.states}
            return False
        self.kept = {**self.kept, **changed}
        whole = {**self.model.leaves, **self.model.states}
        for value, path in self.paths.items():
            whole[path].copy_(storage(self.plan, value).assembled(self.kept[value]))
        self.model.updated()
        return True


def simulate(
    plan: Plan, alone: Path, emitted: Path, base: Path, metrics: Path | None, save_weights: Path | None
) -> int:
    """Trains the plan; 0, or 3 where the run failed (what is printed), or real ranks would wait for
    ever. alone: the program as emitted for one rank; emitted: for all.

    plan: in the element types to compute in. base: the folder that the program's paths are relative
    to."""
    try:
        with Claims() as claims:
            metrics = claims.lines(metrics, FIGURES) if metrics is not None else None
            save_weights = claims.file(save_weights, WEIGHTS) if save_weights is not None else None
            program = replace(read_program(alone), base=base, checkpoint=None, log=None)
            program.where = f"{plan.ranks} ranks simulated on the CPU"
            claim_of_program(claims, program, save_weights)
            data, log = datasets(program), Log(sys.stdout, metrics)
            if plan.ranks > 1:
                require_ends(emitted, base, data, plan.ranks, log)
            _train(plan, program, data, log, save_weights)
    except RunError as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


def _train(plan: Plan, program: RunProgram, data: Mapping[str, Dataset], log: Log, save_weights: Path | None) -> None:
    try:
        run = TrainingRun(program, data, log)
        passes = Simulated(plan, run)
        run.passes, run.model.update = passes, passes.update
        run.train(save_weights)
    finally:
        log.end()
