"""A plan -> what each emitted file holds of it: all, or one pipeline stage with what it receives
and sends.

An operator is in its stage, a conversion in that of its value's producer; conversions of
parameters, states and fields are in each stage that needs them. A `transfer` is no line: its
operand is sent by one stage, its result received by the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import cached_property

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import Pipeline, Plan, PlannedOp, Step
from shardlang.plan.reads import Form, final_form, form, inputs, makes, steps_for
from shardlang.plan.rewrite.stage_transfers import loss_stage
from shardlang.step.phases import Phases, phases


@dataclass(frozen=True)
class FileContents:
    """One emitted file. stage: its number, None where the file holds all.

    steps: what is computed in it. received: values, in the order of `forward`'s arguments. sent:
    forms, in the order that the next stage receives them; the loss depends on those of `trained`.
    fields: of the batch. loss, metrics: those that it returns. names: the text of each form here;
    none before it is known which layers have functions. phases: when the steps run."""

    plan: Plan
    stage: int | None
    steps: Set[Step]
    received: tuple[int, ...]
    sent: tuple[Form, ...]
    trained: frozenset[Form]
    fields: tuple[int, ...]
    loss: int | None
    metrics: dict[str, int]
    names: dict[Form, str]
    phases: Phases

    def arguments(self, received: Iterable[int] | None = None) -> list[str]:
        """The arguments of `forward` after `p`: (some) received values, then fields."""
        first = self.received if received is None else received
        return [self.names[value, -1] for value in (*first, *self.fields)]


def scopes(plan: Plan) -> list[FileContents]:
    """All of a plan, or its stages in order."""
    graph = plan.graph
    if plan.pipeline is None:
        steps, metrics, found = makes(plan).keys(), dict(graph.metrics), phases(plan)
        return [
            FileContents(
                plan,
                None,
                steps,
                received=(),
                sent=(),
                trained=frozenset(),
                fields=graph.data,
                loss=graph.loss,
                metrics=metrics,
                names={},
                phases=found,
            )
        ]
    division = _Division(plan, plan.pipeline)
    return [division.scope(stage) for stage in range(len(plan.pipeline.coordinates))]


def is_transfer(plan: Plan, step: Step) -> bool:
    """Whether a step hands a value on to another stage."""
    return step.kind == "op" and plan.graph.ops[plan.ops[step.index].op].operator == TRANSFER


@dataclass(frozen=True)
class _Division:
    """A plan by stages."""

    plan: Plan
    pipeline: Pipeline

    @cached_property
    def makers(self) -> dict[int, int]:
        """Value -> the stage that makes it."""
        return {v: self.pipeline.op_stage[op.id] for op in self.plan.graph.ops for v in op.results}

    def scope(self, stage: int) -> FileContents:
        plan = self.plan
        graph = plan.graph
        received = tuple(graph.ops[t.op].results[0] for t in self.transfers(stage))
        following = self.transfers(stage + 1)
        sent = tuple(form(t.operands[0]) for t in following)
        trained = frozenset(form(t.operands[0]) for t in following if graph.ops[t.op].section == "loss")
        loss, metrics = graph.loss, graph.metrics
        if loss is None:
            raise InternalError("a program without `train` has no stages to run")
        last = stage == loss_stage(graph, self.pipeline.op_stage)
        shown = [loss, *metrics.values()] if last else []
        steps = self._steps(stage, [*sent, *(final_form(plan, value) for value in shown)])
        of = inputs(plan)
        read = {value for step in steps for value, _ in of[step]} | {value for value, _ in sent}
        fields = tuple(value for value in graph.data if value in read)
        ends = [*sent, *([final_form(plan, loss)] if last else [])]
        found = phases(plan, ends, metrics.values() if last else (), {(value, -1) for value in received})
        return FileContents(
            plan, stage, steps, received=received, sent=sent, trained=trained, fields=fields,
            loss=loss if last else None, metrics=dict(metrics) if last else {}, names={}, phases=found,
        )  # fmt: skip

    @cached_property
    def made(self) -> frozenset[Form]:
        """The forms that a stage makes for another."""
        return frozenset((value, -1) for value in self.makers)

    @cached_property
    def by_stage(self) -> Mapping[int | None, list[Step]]:
        """Stage -> its operators and conversions; None: conversions of what no operator makes."""
        found: dict[int | None, list[Step]] = {}
        for step in self.plan.steps:
            if step.kind == "op":
                stage: int | None = self.pipeline.op_stage[self.plan.ops[step.index].op]
            else:
                stage = self.makers.get(self.plan.conversions[step.index].value)
            found.setdefault(stage, []).append(step)
        return found

    def transfers(self, stage: int) -> list[PlannedOp]:
        """The forms that a stage receives, in order."""
        return [self.plan.ops[step.index] for step in self.by_stage.get(stage, ()) if is_transfer(self.plan, step)]

    def _steps(self, stage: int, ends: list[Form]) -> frozenset[Step]:
        """The operators of a stage and the conversions that it makes."""
        mine = {step for step in self.by_stage.get(stage, ()) if not is_transfer(self.plan, step)}
        of = inputs(self.plan)
        read = [at for step in mine if step.kind == "op" for at in of[step]]
        needed = set(steps_for(self.plan, [*ends, *read], self.made))
        return frozenset(mine | needed.intersection(self.by_stage.get(None, ())))
