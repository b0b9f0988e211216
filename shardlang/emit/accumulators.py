"""Which reductions of a plan `eval` accumulates over batches, and what follows them once the set is
complete.

In `eval` the loss and each metric is its expression over the whole set. So a reduction over the
batch becomes a sum and a count per batch; all that depends on one is computed from the totals, and
all before it stays as planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.emit.statements import operator
from shardlang.emit.text.names import short_names
from shardlang.facts.figures import is_told
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import Total
from shardlang.ops.rule import Split
from shardlang.plan.plan import Plan
from shardlang.plan.reads import Form, final_form, form, layout_of, made_form, steps_for


@dataclass(frozen=True, slots=True)
class Accumulator:
    """`name` is the key in the totals ("loss:1"). `op`: index into `Plan.ops` of the reduction, or
    -1 where the value at `form` does not depend on the batch and is carried along. `pending`: axes
    over which the totals are summed, of mesh number `mesh`; `summed_first`: those of them over
    which the emitted program sums, since the runtime knows those of the first mesh alone. `joined`:
    it is the items of the whole set, joined, in place of a sum."""

    name: str
    value: int
    op: int
    form: Form
    pending: tuple[str, ...]
    mesh: int
    summed_first: tuple[str, ...] = ()
    joined: bool = False

    @property
    def left_pending(self) -> tuple[str, ...]:
        """The axes that the runtime sums over."""
        return tuple(axis for axis in self.pending if axis not in self.summed_first)


@dataclass(frozen=True, slots=True)
class EvalPass:
    """Accumulators by value id; `after`: the operators (indices into `Plan.ops`) after them;
    `predicted`: the forms of values that are kept for each example."""

    accumulators: Mapping[int, Accumulator]
    after: tuple[int, ...]
    predicted: tuple[Form, ...] = ()


class _Refused(Exception):
    """Why a loss or metric cannot be accumulated over batches."""


@dataclass
class _Search:
    """Walks from a wanted value back to the reductions over the batch."""

    plan: Plan
    makers: dict[int, int]
    late: frozenset[int]  # values that depend on a reduction over the batch
    found: dict[int, Accumulator] = field(default_factory=dict)
    after: set[int] = field(default_factory=set)

    def visit(self, name: str, value: int, at: Form) -> None:
        """Account for a value that the whole set determines; `name` is the metric it belongs to."""
        maker = self.makers.get(value, -1)
        if value in self.found or maker in self.after:
            return
        if maker >= 0 and value in self.late:
            self._follow(name, maker)
        elif maker >= 0 and reduces_batch(self.plan, maker):
            self._keep(name, value, maker, at, summed_axes(self.plan, maker))
        else:
            self._carry(name, value, at)

    def _follow(self, name: str, maker: int) -> None:
        self.after.add(maker)
        for use in self.plan.ops[maker].operands:
            if self.plan.graph.values[use.value].constant is None:
                self.visit(name, use.value, form(use))

    def _carry(self, name: str, value: int, at: Form) -> None:
        type = self.plan.graph.values[value].type
        if type.dims:
            raise _Refused("uses a tensor beside a reduction over the batch")
        for planned in (self.plan.ops[step.index] for step in steps_for(self.plan, [at]) if step.kind == "op"):
            op = self.plan.graph.ops[planned.op]
            if any(has_batch(self.plan, v) for v in op.operands) and not has_batch(self.plan, op.results[0]):
                raise _Refused(f"reduces over the batch by `{operator(self.plan, planned).name}`")
        self._keep(name, value, -1, at, layout_of(self.plan, at).pending)

    def _keep(self, name: str, value: int, maker: int, at: Form, pending: tuple[str, ...]) -> None:
        if self.plan.graph.values[value].type.dims:
            raise _Refused("reduces over the batch to more than one number")
        joined = maker >= 0 and operator(self.plan, self.plan.ops[maker]).reduces is Total.ROWS
        if joined and self.plan.pipeline is not None:
            raise _Refused("needs the items of the whole set in the last of several stages")
        count = sum(a.name.rpartition(":")[0] == name for a in self.found.values())
        mesh = self.plan.ops[maker].mesh if maker >= 0 else layout_of(self.plan, at).mesh
        first = self.plan.meshes[mesh].ranked(pending) if mesh else ()
        self.found[value] = Accumulator(
            f"{name}:{count + 1}", value, maker, form=at, pending=pending, mesh=mesh, summed_first=first, joined=joined
        )


def evaluation(plan: Plan, sink: Sink | None) -> EvalPass | None:
    """The sums that `eval` accumulates; a metric for which there is no way is reported (SH400), or
    our fault without a sink."""
    graph = plan.graph
    makers = {value: at for at, op in enumerate(plan.ops) for value in graph.ops[op.op].results}
    search = _Search(plan, makers, _late_values(plan))
    fine = True
    for name, value in wanted_values(plan).items():
        try:
            search.visit(name, value, final_form(plan, value))
        except _Refused as reason:
            _report(plan, sink, name, value, str(reason))
            fine = False
    kept = _predicted(plan, sink)
    return EvalPass(search.found, tuple(sorted(search.after)), kept) if fine else None


def _predicted(plan: Plan, sink: Sink | None) -> tuple[Form, ...]:
    """The forms of the values that an evaluation keeps: as produced, or else the first that is no
    pending sum. One that is always pending is reported (SH400)."""
    found = []
    for value in (value for value in plan.graph.values if value.path in plan.program.predicted):
        forms = [(value.id, -1), *((c.value, c.id) for c in plan.conversions if c.value == value.id)]
        made = [at for at in forms if made_form(plan, at[1]) == at[1]]
        whole = next((at for at in made if not layout_of(plan, at).pending), None)
        if whole is not None:
            found.append(whole)
        elif sink is not None:
            name = short_names(plan.graph)[value.id]
            fact = f"`{name}` is nowhere more than a pending sum, which `predict` cannot write yet"
            sink.report("SH400", fact, value.span, help="ask for a value that is computed from it")
    return tuple(found)


def wanted_values(plan: Plan) -> dict[str, int]:
    """The loss and the metrics, by name, but for those that only figures of a step are made of."""
    loss = {} if plan.graph.loss is None else {"loss": plan.graph.loss}
    return {**loss, **{name: value for name, value in plan.graph.metrics.items() if is_told(name)}}


def reduces_batch(plan: Plan, at: int) -> bool:
    """Whether an operator is a reduction whose operand has the batch and whose result has not."""
    planned = plan.ops[at]
    op = plan.graph.ops[planned.op]
    over_batch = bool(op.operands) and has_batch(plan, op.operands[0]) and not has_batch(plan, op.results[0])
    return over_batch and bool(operator(plan, planned).reduces)


def has_batch(plan: Plan, value: int) -> bool:
    return plan.graph.batch is not None and any(plan.graph.batch in term for term in plan.graph.values[value].type.dims)


def summed_axes(plan: Plan, at: int) -> tuple[str, ...]:
    """The axes over which a reduction's local sum and count are parts: those that split a factor
    its result lacks.

    A factor reduced inside the operator (the classes of cross_entropy) leaves a whole sum on each
    rank."""
    planned = plan.ops[at]
    rule = plan.graph.ops[planned.op].rule
    kept = {f for dims in rule.results for dim in dims for f in dim}
    dropped = [f for f, factor in enumerate(rule.factors) if f not in kept and factor.split is Split.FREE]
    used = {axis for f in dropped for axis in planned.factor_axes[f]}
    return tuple(axis.name for axis in plan.meshes[planned.mesh].axes if axis.name in used)


def _late_values(plan: Plan) -> frozenset[int]:
    """Values computed from a reduction over the batch."""
    late: set[int] = set()
    sums: set[int] = set()
    for at, planned in enumerate(plan.ops):
        op = plan.graph.ops[planned.op]
        if any(value in late or value in sums for value in op.operands):
            late.update(op.results)
        elif reduces_batch(plan, at):
            sums.update(op.results)
    return frozenset(late)


def _report(plan: Plan, sink: Sink | None, name: str, value: int, reason: str) -> None:
    what = "the loss" if name == "loss" else f"metric `{name}`"
    if sink is None:
        raise InternalError(f"{what} {reason}, which eval cannot accumulate")
    sink.report(
        "SH400",
        f"{what} {reason}, which `eval` cannot accumulate over batches yet",
        plan.graph.values[value].span,
        help="leave `eval` out, or end it with `mean(...)` or `sum(...)` over the batch",
    )
