"""A plan executed on simulated ranks in one process: operators on every rank's part, conversions,
forward and backward.

One graph of torch's holds the tensors of all ranks; what passes between ranks are the nodes of
exchanges.py, each with the dual of its row. Nothing of the emitter or the runtime is used. whole.py
has the expected numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.graph.graph import Kind
from shardlang.interpret.meaning.call import PassSettings, call_of
from shardlang.interpret.meaning.whole import leaf
from shardlang.interpret.ranks import split_operators
from shardlang.interpret.ranks.coordinates import block_of, cut_out, sizes_of_dims
from shardlang.interpret.ranks.exchanges import converted
from shardlang.interpret.ranks.stored import storage
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.dim_factors import of_factors
from shardlang.plan.plan import Conversion, Plan, PlannedOp
from shardlang.plan.reads import Form, final_form, layout_of, makes

Locals = list[Tensor]  # by rank


class CannotRun(Exception):
    """A step of the plan that its ranks cannot take: shapes that do not fit, a form that is not
    there.

    form: what the step would have made. made: the forms that were there before it."""

    def __init__(self, form: Form, message: str, made: Mapping[Form, Locals]) -> None:
        super().__init__(message)
        self.form, self.message, self.made = form, message, made


@dataclass(frozen=True)
class RankResults:
    """forms: the local tensors of each form of each value. gradients: likewise, of forms that have
    one.

    stored: the gradient of what each rank stores of a parameter, reduced. states: after the step,
    as stored. Only of an emitted program: figures: its loss and metrics as reported. unseen: forms
    whose gradient cannot be told from another's."""

    forms: Mapping[Form, Locals]
    gradients: Mapping[Form, Locals]
    stored: Mapping[int, Locals]
    states: Mapping[int, Locals]
    figures: Mapping[str, float] = field(default_factory=dict)
    unseen: frozenset[Form] = frozenset()

    def parts_of(self, value: int) -> Locals:
        """The ranks' parts of a value as it was made: together all of it."""
        return self.forms[value, -1]


def store(plan: Plan, params: Mapping[int, Tensor]) -> dict[int, Locals]:
    """Whole parameters and states as each rank stores them, by value id."""
    return {value: storage(plan, value).store(x) for value, x in params.items()}


@dataclass
class _Pass:
    plan: Plan
    run: PassSettings
    forms: dict[Form, Locals] = field(default_factory=dict)
    states: dict[Form, Locals] = field(default_factory=dict)

    def load(self, fields: Mapping[int, Tensor], kept: Mapping[int, Sequence[Tensor]]) -> None:
        graph = self.plan.graph
        for value in graph.values:
            if value.kind is Kind.RESULT or value.id not in self.plan.produced:
                continue
            if value.kind in (Kind.PARAM, Kind.STATE):
                local = storage(self.plan, value.id).gather(kept[value.id])
            else:
                local = self._cut(value.id, leaf(graph, value.id, fields, {}))
            trained = value.kind is Kind.PARAM and value.gradient
            self.forms[value.id, -1] = [x.detach().requires_grad_(trained) for x in local]

    def _cut(self, value: int, whole: Tensor) -> Locals:
        layout = self.plan.produced[value]
        mesh, shape = self.plan.meshes[layout.mesh], tuple(whole.shape)
        part_sizes = sizes_of_dims(self.plan.graph.values[value].type, self.plan.sizes)
        return [cut_out(whole, block_of(mesh, rank, shape, layout, part_sizes)).clone() for rank in range(mesh.size)]

    def compute(self) -> None:
        for step, (form, *_) in makes(self.plan).items():
            try:
                if step.kind == "op":
                    self.forms[form] = self.operate(self.plan.ops[step.index])
                else:
                    self.forms[form] = self.convert(self.plan.conversions[step.index])
            except (RuntimeError, ValueError, IndexError, KeyError) as failure:
                message = f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
                raise CannotRun(form, message, self.forms) from failure

    def operate(self, planned: PlannedOp) -> Locals:
        op = self.plan.graph.ops[planned.op]
        used = [(use.value, use.conversion) for use in planned.operands]
        operands = [self.forms[form] for form in used]
        if op.section != "loss":
            operands = [[x.detach() for x in xs] for xs in operands]
        mesh = self.plan.meshes[planned.mesh]
        part_sizes = of_factors(op, self.plan.graph, self.plan.sizes)
        split = split_operators.SplitOperator(
            call_of(self.plan.graph, op, self.run), planned.factor_axes, mesh, part_sizes
        )
        with torch.set_grad_enabled(op.section == "loss"):
            result = split_operators.on_ranks(split, operands)
        written = REGISTRY[op.operator].updates
        for place, form in enumerate(used):
            # In the form that the operator reads: a copy moves nothing that is stored.
            operands[place] = self.states.get(form, operands[place]) if place in written else operands[place]
        moved = split_operators.moved_states(split, operands) if written else []
        self.states.update({used[place]: list(parts) for place, parts in zip(written, moved, strict=True)})
        return result

    def convert(self, conversion: Conversion) -> Locals:
        source: Form = (conversion.value, conversion.parent)
        before, after = layout_of(self.plan, source), conversion.to
        xs = self.forms[source]
        if not conversion.gradient:
            xs = [x.detach() for x in xs]
        part_sizes = sizes_of_dims(self.plan.graph.values[conversion.value].type, self.plan.sizes)
        here, there = self.plan.meshes[before.mesh], self.plan.meshes[after.mesh]
        return converted(xs, conversion.move, before, after, here, there, part_sizes)

    def backward(self, inner: bool = True) -> dict[Form, Locals]:
        """Every rank seeds its loss with 1; the gradients of all forms (or of parameters alone)."""
        if self.plan.graph.loss is None:
            return {}
        losses = self.forms[final_form(self.plan, self.plan.graph.loss)]
        flowing = {form: xs for form, xs in self.forms.items() if any(x.requires_grad for x in xs)}
        if not inner:
            flowing = {form: xs for form, xs in flowing.items() if form[0] in self.plan.graph.params and form[1] < 0}
        if not any(x.requires_grad for x in losses):
            return {}
        wanted = [x for xs in flowing.values() for x in xs]
        seeds = [torch.ones_like(x) for x in losses]
        try:
            found = iter(torch.autograd.grad(losses, wanted, seeds, allow_unused=True, materialize_grads=True))
        except RuntimeError as failure:
            message = f"backward: {str(failure).splitlines()[0]}"
            raise CannotRun((self.plan.graph.loss, -1), message, self.forms) from failure
        return {form: [next(found) for _ in xs] for form, xs in flowing.items()}


def run(
    plan: Plan,
    fields: Mapping[int, Tensor],
    kept: Mapping[int, Sequence[Tensor]],
    *,
    step: int = 1,
    seed: int = 0,
    inner: bool = True,
) -> RankResults:
    """One step on all ranks of the plan; CannotRun names the step that does not work.

    fields: a whole batch, by value id. kept: what each rank stores of parameters and states (see
    `store`). inner: give the gradients of all forms, and not those of parameters alone."""
    for mesh in plan.meshes:
        stages = plan.pipeline.mesh.axis_size(plan.pipeline.axis) if plan.pipeline else 1
        if mesh.size * stages != plan.ranks * plan.microbatches:
            raise InternalError(f"{mesh.name} has {mesh.size} places for {plan.ranks} ranks")
    state = _Pass(plan, PassSettings(step=step, seed=seed))
    state.load(fields, kept)
    state.compute()
    gradients = state.backward(inner)
    trained = [v for v in plan.graph.params if (v, -1) in gradients]
    return RankResults(
        forms={form: [x.detach() for x in xs] for form, xs in state.forms.items()},
        gradients=gradients,
        stored={v: storage(plan, v).reduce(gradients[v, -1]) for v in trained},
        states={v: [x.detach() for x in state.states.get((v, -1), kept[v])] for v in plan.graph.states},
    )
