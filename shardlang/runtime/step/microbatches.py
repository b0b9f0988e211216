"""A step's and an evaluation's way through the microbatches of a batch, on a rank that holds the
whole model.

Gradients are accumulated; how and when they are reduced is in buckets.py. With pipeline stages,
pipeline.py goes through them instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from shardlang.facts.actions import EVALUATION
from shardlang.runtime.comm.mesh import microbatches
from shardlang.runtime.data.loader import Batch
from shardlang.runtime.program import RunProgram
from shardlang.runtime.step.model import RankModel
from shardlang.runtime.step.totals import BatchTotals, Pending, Totals


class Accumulation:
    """Goes through one microbatch after the other."""

    def __init__(self, program: RunProgram, model: RankModel, figures: Totals, evaluated: Totals) -> None:
        self.program, self.model = program, model
        self.figures, self.evaluated = figures, evaluated

    def step(self, batch: Batch) -> Pending:
        """Forward and backward of all; sums the figures while the last backward runs."""
        program, parts = self.program, self.figures.parts()
        assert program.forward is not None
        given = given_ahead(program.before_microbatch, program.before_step, batch)
        sums, last = BatchTotals(), program.microbatches - 1
        for number in microbatches(program.microbatches):
            with self.model.forward_context():
                loss, metrics, *further = program.forward(self.model.p, *batch[number].values(), **given)
            parts.add({"loss": loss, **metrics})
            for values in further:
                sums.add(values)
            if number == last:
                concluded = conclusion(program.conclude, self.model.p, sums)
                figures = self.figures.start({**parts.values, **concluded})
            self.model.backward(loss, number == last)
        return figures

    def evaluate(self, batch: Batch, rows: int) -> Mapping[str, Tensor]:
        """The sums and counts of a batch of `rows` real rows, of this rank."""
        assert self.program.evaluate is not None
        parts = self.evaluated.parts()
        for number in microbatches(self.program.microbatches):
            with self.model.gathers.during((EVALUATION, 0)):
                parts.add(self.program.evaluate(self.model.p, *batch[number].values(), rows))
        return parts.values


def given_ahead(
    before_microbatch: Callable[..., Mapping[str, Tensor]] | None,
    before_step: Callable[..., Mapping[str, Tensor]] | None, batch: Batch,
) -> Mapping[str, Tensor]:  # fmt: skip
    """The totals of the whole batch that the first forward needs, from sums over microbatches."""
    if before_microbatch is None:
        return {}
    totals = BatchTotals()
    with torch.no_grad():
        for number in microbatches(len(batch)):
            totals.add(before_microbatch(*batch[number].values()))
        return totals.values if before_step is None else before_step(**totals.values)


def conclusion(conclude: Callable[..., Mapping[str, Tensor]] | None, p: Any, sums: BatchTotals) -> Mapping[str, Tensor]:
    """The metrics that are made from sums over the microbatches."""
    if conclude is None:
        return {}
    with torch.no_grad():
        return conclude(p, **sums.values)
