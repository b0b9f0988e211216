"""A step's and an evaluation's way through the microbatches of a batch, on a rank that holds the whole model.

Gradients are accumulated; how and when they are reduced is in buckets.py. With pipeline stages, pipeline.py goes
through them instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from shardlang.runtime import wire
from shardlang.runtime.data import Batch
from shardlang.runtime.mesh import Mesh, microbatches
from shardlang.runtime.model import Model
from shardlang.runtime.program import Program
from shardlang.runtime.totals import Pending, Totals

Prepare = Callable[..., Mapping[str, Tensor]]


class Accumulation:
    """Goes through one microbatch after the other."""

    def __init__(self, program: Program, model: Model, figures: Totals, evaluated: Totals) -> None:
        self.program, self.model = program, model
        self.figures, self.evaluated = figures, evaluated

    def step(self, batch: Batch) -> Pending:
        """Forward and backward of all; the figures of the batch on their way, summed while the last backward runs."""
        program, parts = self.program, self.figures.parts()
        assert program.forward is not None
        given = prepared(program.prepare, program.mesh, program.prepare_pending, batch)
        last = program.microbatches - 1
        for number in microbatches(program.microbatches):
            with self.model.forward_context():
                loss, metrics = program.forward(self.model.p, *batch[number].values(), **given)
            parts.add({"loss": loss, **metrics})
            if number == last:
                figures = self.figures.start(parts.values)
            self.model.backward(loss, number == last)
        return figures

    def evaluate(self, batch: Batch, rows: int) -> Mapping[str, Tensor]:
        """The sums and counts of a batch of `rows` real rows, of this rank."""
        assert self.program.evaluate is not None
        parts = self.evaluated.parts()
        for number in microbatches(self.program.microbatches):
            parts.add(self.program.evaluate(self.model.p, *batch[number].values(), rows))
        return parts.values


@torch.no_grad()
def prepared(
    prepare: Prepare | None, mesh: Mesh, pending: Mapping[str, tuple[str, ...]], batch: Batch
) -> dict[str, Tensor]:
    """What must be known of the whole batch before the first forward: sums over its microbatches, then over ranks."""
    if prepare is None:
        return {}
    totals = Totals(mesh, pending).parts()
    for number in microbatches(len(batch)):
        totals.add(prepare(*batch[number].values()))
    return {name: _summed(value, mesh, pending[name]) for name, value in totals.values.items()}


def _summed(value: Tensor, mesh: Mesh, axes: tuple[str, ...]) -> Tensor:
    group = mesh[mesh._ranked(axes)]
    return wire.begin_reduce(value.contiguous(), group).wait() if group.size > 1 else value
