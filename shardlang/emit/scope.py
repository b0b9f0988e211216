"""A plan -> what each emitted file holds of it: all, or one pipeline stage with what it receives
and sends.

An operator is in its stage, a conversion in that of its value's producer; conversions of
parameters, states and fields are in each stage that needs them. A `transfer` is no line: its
operand is sent by one stage, its result received by the next."""

from __future__ import annotations

from collections.abc import Iterable, Set

from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form, final_form, form, inputs, transfers
from shardlang.plan.rewrite.stage_transfers import loss_stage
from shardlang.step.passes import passes
from shardlang.step.phases import Phases, phases
from shardlang.step.units import received


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
    return [_scope(plan, stage) for stage in range(len(plan.coordinates))]


def _scope(plan: Plan, stage: int) -> FileContents:
    graph, loss = plan.graph, plan.graph.loss
    arriving, following = ([t for t in transfers(plan) if plan.stage(t.op) == at] for at in (stage, stage + 1))
    given = tuple(graph.ops[t.op].results[0] for t in arriving)
    sent = tuple(form(t.operands[0]) for t in following)
    last = plan.pipeline is None or stage == loss_stage(graph, plan.pipeline.op_stage)
    shown = {**graph.metrics} if last else {}
    steps = frozenset(step for step in passes(plan)[stage].steps if not received(plan, step))
    read = {value for step in steps for value, _ in inputs(plan)[step]} | {value for value, _ in sent}
    ends = [*sent, *([final_form(plan, loss)] if last and loss is not None else [])]
    return FileContents(
        plan, None if plan.pipeline is None else stage, steps, received=given, sent=sent,
        trained=frozenset(form(t.operands[0]) for t in following if graph.ops[t.op].section == "loss"),
        fields=tuple(value for value in graph.data if value in read or plan.pipeline is None),
        loss=loss if last else None, metrics=shown, names={},
        phases=phases(plan, ends, shown.values(), {(value, -1) for value in given}),
    )  # fmt: skip
