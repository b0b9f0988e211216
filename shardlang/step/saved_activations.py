"""Bytes that a microbatch saves on one rank in its forward, for its backward.

The declaration of an operator says what its backward reads; here it is found which of these tensors
are one memory (views, conversions that send nothing), so that each counts once, and which are not
kept but computed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import shardlang.ops.all_families  # noqa: F401  (fills the registry)
from shardlang.frozen.records import remembered
from shardlang.graph.graph import Kind
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.families.internal import TRANSFER
from shardlang.ops.rule import shared_axes
from shardlang.ops.saved_activations import Aliasing, LocalOp, Residuals
from shardlang.plan.fusions import fusions
from shardlang.plan.plan import MoveKind, Plan, PlannedOp, Recomputed, Step
from shardlang.plan.reads import Form, inputs, layout_of
from shardlang.step.blocks.kinds import kinds_of
from shardlang.step.recompute_groups import RecomputeGroups

# Conversions that give a view of what they are given.
_VIEWS = (MoveKind.I_TO_R, MoveKind.R_TO_I, MoveKind.I_TO_S, MoveKind.R_TO_S, MoveKind.VIEW)


class SavedActivations:
    """The bytes kept, by stage: in one microbatch until its backward (`of`), and of what is
    computed again (`again`)."""

    def __init__(self, plan: Plan, groups: Sequence[Recomputed]) -> None:
        self.plan = plan
        self._stage = plan.stage
        self.owners = RecomputeGroups(plan, plan.steps, groups)
        self._root: dict[Form, Form] = {}
        self._order: dict[Form, tuple[int, ...]] = {}
        # (stage, group or -1) -> what is kept there, by its memory; of what is no form, by
        # operator.
        self.kept: dict[tuple[int, int], dict[Any, int]] = {}
        # Operator (id) -> the parameters themselves that its backward reads.
        self.saved: dict[int, list[int]] = {}
        # Operator (id) -> bytes that it is the first to save in the host's memory.
        self.sent: Counter[int] = Counter()
        self.hosted = 0  # what of all that is in the host's memory
        # Operator (id) -> itself on this rank, the same object for equal ones; the memories that it
        # saves.
        self.locals: dict[int, LocalOp] = {}
        self._known: dict[object, tuple[LocalOp, Aliasing, Residuals]] = {}
        self._saved: dict[int, Residuals] = {}
        self.reads: dict[int, list[Any]] = {}
        self._place = {step: at for at, step in enumerate(plan.steps)}
        # Group -> the place of its last step that saves anything: so far it is computed again.
        self._ends: dict[int, int] = {}
        self._savers: set[int] = set()  # the operators of groups that save more than a number
        for step in plan.steps:
            self._lay(step)
        for at, planned in enumerate(plan.ops):
            self._op(Step("op", at), planned)
        for step in plan.steps if groups else ():
            self._inputs(step)
        self._loss()

    def tensors(self, stage: int) -> Iterator[tuple[str, int, bool]]:
        """The paths of what is kept, with its bytes and whether it stays until backward, or only
        while the largest layer is computed again."""
        groups = [group for s, group in self.kept if s == stage and group >= 0]
        largest = max(groups, key=lambda group: sum(self.kept[stage, group].values()), default=-1)
        for group in {-1, largest}:
            for at, size in self.kept.get((stage, group), {}).items():
                yield self._path(at), size, group < 0

    def _path(self, at: Any) -> str:
        graph = self.plan.graph
        path: str = (graph.ops[at[1]] if at[0] == "made by" else graph.values[at[0]]).path
        return path

    def of(self, stage: int) -> int:
        """All that stays until backward."""
        return self._all(self.kept.get((stage, -1), {}))

    def _all(self, kept: Mapping[Any, int]) -> int:
        """The bytes of what is kept, in all layers of runs."""
        return sum(size * self.times(at) for at, size in kept.items())

    def times(self, at: Any) -> int:
        """How many memories one stands for: those of the layers of a run."""
        graph = self.plan.graph
        return graph.times(graph.ops[at[1]]) if at[0] == "made by" else graph.values[at[0]].times

    def again(self, stage: int) -> int:
        """The memory that the largest recomputed layer needs meanwhile."""
        return max((sum(k.values()) for (s, group), k in self.kept.items() if s == stage and group >= 0), default=0)

    def on_host(self, stage: int) -> int:
        """All that waits in the host's memory until backward."""
        kept = ((self.owners.to_host(group), s, each) for (s, group), each in self.kept.items() if group >= 0)
        return sum(self._all(each) for to_host, s, each in kept if to_host and s == stage)

    def data(self, value: int) -> int:
        """The bytes of a field that a rank loads, for all microbatches."""
        return form_bytes(self.plan, (value, -1)) * self.plan.microbatches

    def runs_again(self, step: Step) -> bool:
        """Whether backward takes a step again: in a group that drops what it makes, a step whose
        result is needed; in another one, each step up to the last that saves anything."""
        group = self.owners.of(step)
        if group is None or self.owners.to_host(group):
            return False
        if not self.owners.drops(group):
            return self._place[step] <= self._ends.get(group, -1)
        if step.kind == "op":
            return True
        c, kept = self.plan.conversions[step.index], self.kept.get(self._at_group(group), {})
        return (c.value, c.id) in kept or any(self.owners.group(op) == group for op in self.owners.readers(c.id))

    def needed(self) -> tuple[Recomputed, ...]:
        """The groups of the plan; of those that drop what they make, without operators whose
        results backward does not read, nor what is computed again of them."""
        return tuple(g if not g.drops else self._needed(number, g) for number, g in enumerate(self.owners.groups))

    def _needed(self, number: int, group: Recomputed) -> Recomputed:
        graph = self.plan.graph
        kept = {at[0] for at in self.kept.get(self._at_group(number), {}) if at[0] != "made by"}
        needed: list[int] = []
        for op in (graph.ops[at] for at in reversed(group.ops)):
            if op.id in self._savers or not kept.isdisjoint(op.results):
                needed.append(op.id)
                kept.update(op.operands)
        return replace(group, ops=tuple(reversed(needed)))

    def _at_group(self, group: int) -> tuple[int, int]:
        return self._stage(self.owners.groups[group].call[0]), group

    # --- where tensors lie

    def _lay(self, step: Step) -> None:
        """Finds the memory of what a step makes."""
        if step.kind == "op":
            planned = self.plan.ops[step.index]
            op = self.plan.graph.ops[planned.op]
            self.locals[op.id], aliasing, self._saved[op.id] = self._facts(step, planned)
            for value in op.results:
                shared = aliasing.shared or (op.operator == TRANSFER and not self.plan.crosses(self._stage(op.id)))
                self._root[value, -1] = self._at(planned, 0) if shared else (value, -1)
                self._order[value, -1] = aliasing.order
            return
        conversion = self.plan.conversions[step.index]
        form, source = (conversion.value, conversion.id), (conversion.value, conversion.parent)
        mesh = self.plan.meshes[conversion.to.mesh]
        shared = conversion.move.kind in _VIEWS or mesh.degree(mesh.ranked(conversion.move.axes)) == 1
        self._root[form] = self.memory(source) if shared else form
        if shared and source in self._order:
            self._order[form] = self._order[source]

    def memory(self, form: Form) -> Form:
        """The form that has the memory which a form is in."""
        return self._root.get(form, form)

    def _at(self, planned: PlannedOp, operand: int) -> Form:
        use = planned.operands[operand]
        return self.memory((use.value, use.conversion))

    def _facts(self, step: Step, planned: PlannedOp) -> tuple[LocalOp, Aliasing, Residuals]:
        """An operator on this rank, and what is declared of that; equal ones are asked once."""
        kinds, uses, op = kinds_of(self.plan), planned.operands, self.plan.graph.ops[planned.op]
        order = self._order.get((uses[0].value, uses[0].conversion)) if uses else None
        forms = [*((use.value, use.conversion) for use in uses), *((value, -1) for value in op.results)]
        key = kinds.step(step), order, *[id(use.layout) for use in uses], *[kinds.form(form)[0] for form in forms]
        if key not in self._known:
            declared, local = REGISTRY[op.operator], self._local(planned, order)
            self._known[key] = local, declared.aliasing(local), declared.saved(local)
        return self._known[key]

    def _local(self, planned: PlannedOp, order: tuple[int, ...] | None) -> LocalOp:
        graph, meshes = self.plan.graph, self.plan.meshes
        op = graph.ops[planned.op]
        uses, types = planned.operands, [graph.values[use.value].type for use in planned.operands]
        results = tuple(graph.values[v].type for v in op.results)
        mesh = meshes[planned.mesh]
        return LocalOp(
            tuple(self.plan.local_shape(use.value, use.layout) for use in uses),
            tuple(self.plan.local_shape(v, layout) for v, layout in zip(op.results, planned.results, strict=True)),
            tuple(types), result_types=results, gradient=tuple(graph.values[use.value].gradient for use in uses),
            order=tuple(range(len(types[0].dims) if types else 0)) if order is None else order,
            attrs=op.attrs, rule=op.rule, cut=tuple(mesh.degree(mesh.ranked(axes)) > 1 for axes in planned.factor_axes),
            exchanged=bool(shared_axes(op.rule, planned.factor_axes)),
        )  # fmt: skip

    # --- what is kept

    def _op(self, step: Step, planned: PlannedOp) -> None:
        """The tensors that one operator's backward reads."""
        graph = self.plan.graph
        op = graph.ops[planned.op]
        if not any(graph.values[v].gradient for v in op.results):
            return
        found = self.owners.group(op.id)
        group = -1 if found is None else found
        if op.operator == TRANSFER:  # each end holds it, for the gradient that comes back or goes on
            self._keep(self._stage(op.id), -1, (op.results[0], -1))
            self._keep(self._stage(op.id) - 1, -1, self._at(planned, 0))
        saved = self._saved[op.id]
        if group >= 0 and (saved.operands or saved.results or saved.more):
            if saved.results or saved.more or any(graph.values[op.operands[at]].type.dims for at in saved.operands):
                self._savers.add(op.id)
            self._ends[group] = max(self._ends.get(group, 0), self._place[step])
        self.reads[op.id] = [self._at(planned, at) for at in saved.operands]
        self.reads[op.id] += [self.memory((op.results[at], -1)) for at in saved.results]
        for operand in saved.operands:
            self._keep(self._stage(op.id), group, self._at(planned, operand), op.id)
        for result in saved.results:
            self._keep(self._stage(op.id), group, self.memory((op.results[result], -1)), op.id)
        if saved.more:
            self.reads[op.id].append(("made by", op.id))
            self.kept.setdefault((self._stage(op.id), group), {})["made by", op.id] = saved.more
            self.sent[op.id] += saved.more if self.owners.to_host(found) else 0
            self.hosted += saved.more * graph.times(op) if op.results[0] in self.plan.memory_of else 0

    def _inputs(self, step: Step) -> None:
        """The values that a group reads from others are kept, to compute it again."""
        group = self.owners.of(step)
        if group is None or self.owners.to_host(group):
            return
        stage, _ = self._at_group(group)
        for form in inputs(self.plan)[step]:
            root = self.memory(form)
            if self._made_in(form) != group and not self.owners.drops(self._made_in(root)):
                self._keep(stage, -1, root)

    def _made_in(self, form: Form) -> int | None:
        """The group that makes a form."""
        value, conversion = form
        if conversion >= 0:
            return self.owners.of(Step("conversion", conversion))
        producer = self.plan.graph.producers.get(value)
        return None if producer is None else self.owners.group(producer)

    def _keep(self, stage: int, group: int, root: Form, reader: int = -1) -> None:
        """A memory that something in a stage, and in a group or in none (-1), reads in backward."""
        value = self.plan.graph.values[root[0]]
        if root[1] < 0 and value.kind is not Kind.RESULT:
            if root[0] in self.plan.params and reader >= 0:
                self.saved.setdefault(reader, []).append(root[0])
            return
        if self._elsewhere(root, stage):
            return
        made = self._made_in(root)
        within = made if made is not None and (made == group or self.owners.drops(made)) else -1
        if within < 0 <= group and self.owners.to_host(group) and value.gradient and not self._received(root):
            within = group
        kept = self.kept.setdefault((stage, within), {})
        if root not in kept:
            kept[root] = form_bytes(self.plan, root)
            self.sent[reader] += kept[root] if self.owners.to_host(within if within >= 0 else None) else 0
            self.hosted += kept[root] * value.times if root[0] in self.plan.memory_of else 0

    def _received(self, root: Form) -> bool:
        """Whether a memory is a message of another stage, which stays until backward is done."""
        producer = self.plan.graph.producers.get(root[0])
        return root[1] < 0 and producer is not None and self.plan.graph.ops[producer].operator == TRANSFER

    def _elsewhere(self, root: Form, stage: int) -> bool:
        """Whether another stage of this rank holds a memory already."""
        producer = self.plan.graph.producers.get(root[0])
        return root[1] < 0 and producer is not None and self._stage(producer) != stage

    def _loss(self) -> None:
        loss = self.plan.graph.loss
        if loss is not None and loss in self.plan.graph.producers:
            self._keep(self._stage(self.plan.graph.producers[loss]), -1, self.memory((loss, -1)))


@remembered
def saved_activations(plan: Plan) -> SavedActivations:
    """The bytes that a plan keeps."""
    if not any(group.drops for group in plan.recompute):
        return SavedActivations(plan, plan.recompute)
    return SavedActivations(plan, SavedActivations(plan, plan.recompute).needed())


def owners(plan: Plan, steps: Sequence[Step] | None = None) -> RecomputeGroups:
    """The recompute groups of a plan's steps; steps: those of one function alone."""
    found = saved_activations(plan).owners
    return found if steps is None else RecomputeGroups(plan, steps, found.groups)


@remembered
def fused(plan: Plan) -> Mapping[int, int]:
    """Product -> the addition that is one call with it, both in `Plan.ops`: where they are of one
    recompute group, or of none."""
    of, ops, pairs = owners(plan).group, plan.ops, fusions(plan).values()
    return {p.product: p.addition for p in pairs if of(ops[p.product].op) == of(ops[p.addition].op)}


@remembered
def again(plan: Plan) -> frozenset[int]:
    """The operators (ids) that backward computes again."""
    return frozenset(op for group in owners(plan).groups if not group.to_host for op in group.ops)


def form_bytes(plan: Plan, form: Form) -> int:
    """Bytes of a form of a value on one rank."""
    return plan.local_bytes(form[0], layout_of(plan, form))


def device_bytes(plan: Plan, form: Form) -> int:
    """Bytes of a form on the device."""
    return 0 if form[0] in plan.memory_of else form_bytes(plan, form)


def made_bytes(plan: Plan) -> int:
    """Bytes of all values with a gradient, and of the conversions of these that send anything."""
    values = plan.graph.values
    made = [(v, -1) for op in plan.graph.ops for v in op.results if values[v].gradient]
    sent = [(c.value, c.id) for c in plan.conversions if c.gradient and c.move.forward_bytes]
    return sum(form_bytes(plan, form) for form in (*made, *(at for at in sent if values[at[0]].gradient)))
