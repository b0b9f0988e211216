"""A step's and an evaluation's way through pipeline stages: the actions of the schedule, one after
the other.

The emitted files have the work of a stage; messages.py sends the messages. Gradients accumulate
locally; a bucket's reduction starts in the last backward that gives to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shardlang.facts.actions import EVALUATION, FORWARD, Action
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.record import record
from shardlang.runtime.data.loader import Batch
from shardlang.runtime.messages import Exchange, MessageRoutes
from shardlang.runtime.program import RunProgram
from shardlang.runtime.step.microbatches import conclusion, given_ahead
from shardlang.runtime.step.model import RankModel
from shardlang.runtime.step.recompute import Recomputing
from shardlang.runtime.step.split_backward import Halves, whole
from shardlang.runtime.step.totals import BatchTotals, Pending, Totals


@dataclass
class SavedForward:
    """The values of a forward that backward needs: the received leaves, what was sent, the loss;
    between I and W, what W needs.

    again: something of it is computed again in backward. That is done once, in I, which then does
    what W would."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    loss: Tensor | None
    again: bool
    halves: Halves | None = None


@dataclass
class Pass:
    """One step in progress."""

    batch: Batch
    exchange: Exchange
    figures: BatchTotals
    given: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    sums: dict[int, BatchTotals] = field(default_factory=dict)
    kept: dict[tuple[int, int], SavedForward] = field(default_factory=dict)


class PipelineRunner:
    """Runs this rank's actions."""

    def __init__(self, program: RunProgram, model: RankModel, figures: Totals, evaluated: Totals) -> None:
        assert program.pipeline is not None
        self.program, self.model = program, model
        self.figures, self.evaluated = figures, evaluated
        self.training = MessageRoutes(program, program.pipeline.table, False)
        self.forwards = MessageRoutes(program, program.pipeline.forwards(program.microbatches), True)
        self.weights = {stage: model.leaves_of(stage) for stage in program.stages_here}
        self.due = [self._due(at) for at in range(len(self.training.mine))]

    @property
    def channels(self) -> set[tuple[int, int]]:
        """(source, target) of the messages from and to this rank, in training and in evaluation."""
        return self.training.channels | self.forwards.channels

    def _due(self, at: int) -> list[int]:
        """The buckets to be reduced in the action number `at`."""
        action = self.training.mine[at]
        if not action.to_parameters:
            return []
        later = {other.stage for other in self.training.mine[at + 1 :] if other.to_parameters}
        buckets, each = enumerate(self.model.bucket_stages), self.model.reducer.each
        return [at for at, by in buckets if action.stage in by and (at in each or not later & set(by))]

    def step(self, batch: Batch) -> Pending:
        """Forward and backward of all microbatches through this rank's stages; gradients are
        reduced when it returns.

        The figures of the batch are on their way."""
        now = Pass(batch, Exchange(self.training), self.figures.parts())
        for stage in self.program.stages_here:
            own = self.program.stages[stage]
            fields = [{name: part[name] for name in own.fields} for part in batch]
            now.given[stage] = given_ahead(own.before_microbatch, own.before_step, fields)
        for at, action in enumerate(self.training.mine):
            now.exchange.expect(at)
            world.microbatch = action.microbatch
            record.at_action(action.kind, action.stage)
            if action.forward:
                self._forward(now, at, action)
            else:
                self._backward(now, at, action)
        world.microbatch = 0
        record.at_action("", -1)
        for stage, sums in now.sums.items():
            now.figures.values.update(conclusion(self.program.stages[stage].conclude, self.model.trees[stage], sums))
        figures = self.figures.start(now.figures.values)
        now.exchange.finish()
        self.model.gathers.release()
        self.model.reducer.finish()
        return figures

    def _forward(self, now: Pass, at: int, action: Action) -> None:
        stage = self.program.stages[action.stage]
        inputs = now.exchange.take(at)
        for tensor, value in zip(inputs, stage.receives, strict=True):
            tensor.requires_grad_(value.gradient)
        fields = [now.batch[action.microbatch][name] for name in stage.fields]
        Recomputing.called()
        with self.model.forward_context((FORWARD, action.stage)):
            result = stage.forward(self.model.trees[action.stage], *inputs, *fields, **now.given[action.stage])
        outputs, further = self._parted(self.training, action, result)
        loss = further.pop(0) if further and isinstance(further[0], Tensor) else None
        now.figures.add({**({} if loss is None else {"loss": loss}), **(further[0] if further else {})})
        for sums in further[1:]:
            now.sums.setdefault(action.stage, BatchTotals()).add(sums)
        taken = [tensor for tensor in inputs if tensor.requires_grad]
        # Of the outputs, those that a gradient comes back for.
        after = self.training.stages[action.stage + 1].receives if outputs else []
        given = [tensor for tensor, value in zip(outputs, after, strict=True) if value.gradient]
        now.kept[action.stage, action.microbatch] = SavedForward(taken, given, loss, Recomputing.called())
        now.exchange.give(at, [tensor.detach() for tensor in outputs])

    def _parted(self, routes: MessageRoutes, action: Action, result: Any) -> tuple[list[Tensor], list[Any]]:
        """The result of a stage: the values that it sends, and what follows them."""
        listed = list(result) if isinstance(result, tuple) else [result]
        after = action.stage + 1
        count = len(routes.stages[after].receives) if after < len(routes.stages) else 0
        return listed[:count], listed[count:]

    def _backward(self, now: Pass, at: int, action: Action) -> None:
        where = action.stage, action.microbatch
        kept = now.kept[where]
        ends = self._ends(now.exchange.take(at), kept) if not action.apart else []
        if not action.half:
            self.model.reducer.start(self.due[at])
        with self.model.gathers.during((action.kind, action.stage)):
            self._half(kept, ends, action)
        if action.apart:  # in which a gradient may arrive in several parts
            self.model.reducer.start(self.due[at])
        if action.to_inputs:
            # The gradient of a received value is zeros where this microbatch had none.
            none = (torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in kept.inputs)
            now.exchange.give(at, list(none))
        if action.to_parameters:
            del now.kept[where]
            self.model.reducer.complete()

    def _half(self, kept: SavedForward, ends: list[tuple[Tensor, Tensor]], action: Action) -> None:
        """All of a backward, or the half of it that an action is."""
        weights = self.weights[action.stage]
        if not action.half or (action.to_inputs and kept.again):
            whole(ends)
        elif action.to_inputs:
            kept.halves = Halves(ends, kept.inputs)
            kept.halves.inputs(weights)
        elif kept.halves is not None:
            kept.halves.weights(weights)

    def _ends(self, gradients: list[Tensor], kept: SavedForward) -> list[tuple[Tensor, Tensor]]:
        """The gradients that backward begins with: the values sent, with the gradients that came
        for them, and the loss, with 1 or the loss scale."""
        ends = [pair for pair in zip(kept.outputs, gradients, strict=True) if pair[0].requires_grad]
        if kept.loss is not None and kept.loss.requires_grad:
            scale = self.model.gradients.scale
            ends.append((kept.loss, torch.full_like(kept.loss, 1.0 if scale is None else scale.factor)))
        return ends

    def evaluate(self, batch: Batch, rows: int) -> Mapping[str, Tensor]:
        """The sums and counts of a batch of `rows` real rows, of this rank's stages."""
        exchange, parts = Exchange(self.forwards), self.evaluated.parts()
        for at, action in enumerate(self.forwards.mine):
            exchange.expect(at)
            world.microbatch = action.microbatch
            stage = self.program.stages[action.stage]
            if stage.evaluate is None:
                continue
            inputs = exchange.take(at)
            fields = [batch[action.microbatch][name] for name in stage.fields]
            with self.model.gathers.during((EVALUATION, action.stage)):
                result = stage.evaluate(self.model.trees[action.stage], *inputs, *fields, rows)
            outputs, further = self._parted(self.forwards, action, result)
            for sums in further:
                parts.add(sums)
            exchange.give(at, outputs)
        world.microbatch = 0
        exchange.finish()
        return parts.values
