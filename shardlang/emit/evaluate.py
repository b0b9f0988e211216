"""The plan -> `evaluate` and `finish`: the loss and metrics of `eval`, accumulated over batches,
then made whole.

`evaluate` has the operators and layouts of `forward`, without dropout. accumulators.py decides what
it accumulates."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.accumulators import Accumulator, EvalPass, wanted_values
from shardlang.emit.forward import dict_text, function_text, received_lines, signature
from shardlang.emit.functions import BlockFunctions, FunctionBody
from shardlang.emit.scene import FileContext
from shardlang.emit.scope import FileContents
from shardlang.emit.statements import StatementWriter, blocks_text, operator
from shardlang.emit.text.citations import place
from shardlang.emit.text.lines import Stmt, Titled
from shardlang.emit.text.names import number_text, short_names
from shardlang.emit.text.sites import Sites
from shardlang.emit.text.sizes import Groups, LocalSizes
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind
from shardlang.ops.code import RT, TORCH, Code, around, infix, method
from shardlang.ops.declaration import Total
from shardlang.ops.families.internal import TRANSFER
from shardlang.ops.python_text import literal
from shardlang.ops.texts import TORCH_DTYPES
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form, form, layout_of, made_form, steps_for, transfers
from shardlang.step.blocks.forms import Forms
from shardlang.step.phases import phases
from shardlang.step.units import received


@dataclass(frozen=True)
class Evaluate:
    """`evaluate` of one file: the accumulators whose totals it has, and their computations."""

    scope: FileContents
    evaluation: EvalPass
    totals: tuple[Accumulator, ...]
    predicted: tuple[Form, ...]
    sent: tuple[Form, ...]
    body: FunctionBody

    def names(self) -> dict[Form, str]:
        """The names of its forms: without dropout, its result is its operand."""
        values = {value for value, _ in self.body.visible} | {*self.scope.received, *self.scope.fields}
        functions = self.body.functions
        return functions.naming.names(values, reserved=[*self.body.called, *functions.named])


def evaluate_of(scope: FileContents, evaluation: EvalPass, functions: BlockFunctions) -> Evaluate:
    """The steps of `evaluate`, with the layers in it."""
    plan, wanted = scope.plan, evaluated_steps(scope.plan, evaluation)
    sends = zip(scope.sent, evaluated_sends(scope, wanted), strict=True)
    mine, sent = tuple(accumulators_of(scope, evaluation)), tuple(at for at, needed in sends if needed)
    predicted = tuple(at for at in evaluation.predicted if made_here(scope, at[0]))
    ends = [*sent, *(at for a in mine for at in _summed_forms(plan, a)), *predicted]
    steps = [step for step in plan.steps if step in wanted and step in scope.steps]
    scene = FileContext(plan, False, Forms(plan, standing=_without_dropout(plan)), steps, scope.stage)
    return Evaluate(scope, evaluation, mine, predicted, sent, functions.body(scene, steps, ends))


def _summed_forms(plan: Plan, accumulator: Accumulator) -> list[Form]:
    """The forms that an accumulator reads."""
    return [accumulator.form] if accumulator.op < 0 else [form(use) for use in plan.ops[accumulator.op].operands]


def evaluate_text(parts: Evaluate, groups: Groups) -> Code:
    """`def evaluate(p, x, label, rows): ...`: one batch of `eval` to its sums and counts; a stage
    sends on first what later ones need for theirs."""
    scope, body = parts.scope, parts.body
    plan, names, sizes = scope.plan, parts.names(), LocalSizes(scope.plan, groups)
    writer, own = body.writer(names, sizes), short_names(plan.graph)
    blocks = body.blocks(writer)
    for at in [*parts.sent, *(at for a in parts.totals for at in _summed_forms(plan, a)), *parts.predicted]:
        names[at] = names[body.scene.forms.form(*at)]
    totals = {a.value: sizes.taken.claim(f"{own[a.value]}_total") for a in parts.totals}
    blocks.extend(_total_block(writer, a, totals[a.value]) for a in parts.totals)
    sums = {a.name: _summed(groups, a, totals[a.value]) for a in parts.totals}
    sums |= {plan.graph.values[at[0]].path: names[at] for at in parts.predicted}
    results = [*(names[at] for at in parts.sent), *([dict_text(sums)] if sums else [])]
    received = evaluated_values(scope, parts.evaluation)
    arguments = [names[value, -1] for value in (*received, *scope.fields)]
    text = function_text(
        signature("evaluate", [*arguments, "rows"]),
        [*received_lines(writer, names, received), *sizes.definitions],
        blocks_text(blocks),
        f"    return {', '.join(results) or '()'}",
    )
    return around(around("@", TORCH("no_grad"), "\n"), text)


def evaluated_values(scope: FileContents, evaluation: EvalPass) -> list[int]:
    """The received values that an evaluation needs."""
    steps = evaluated_steps(scope.plan, evaluation)
    ops = {v: at for at, p in enumerate(scope.plan.ops) for v in scope.plan.graph.ops[p.op].results}
    return [value for value in scope.received if Step("op", ops[value]) in steps]


def evaluated_sends(scope: FileContents, steps: Set[Step]) -> list[bool]:
    """Whether an evaluation needs each value that a stage sends."""
    plan, stage = scope.plan, scope.stage
    return [Step("op", t.op) in steps for t in transfers(plan) if stage is not None and plan.stage(t.op) == stage + 1]


def accumulators_of(scope: FileContents, evaluation: EvalPass) -> list[Accumulator]:
    """The accumulators of a file: those of its own values; of parameters, in the loss's file."""
    return [a for a in _ordered(evaluation) if made_here(scope, a.value)]


def made_here(scope: FileContents, value: int) -> bool:
    """Whether a value is made in a file; one that is not computed counts where the loss is."""
    graph = scope.plan.graph
    made = value in scope.received or Step("op", graph.producers.get(value, -1)) in scope.steps
    return made if graph.values[value].kind is Kind.RESULT else scope.loss is not None


def _summed(groups: Groups, accumulator: Accumulator, name: str) -> str:
    """A total, over a further mesh already whole."""
    first = accumulator.summed_first
    return f"rt.all_reduce({name}, {groups.text(first, accumulator.mesh)})" if first else name


def _ordered(evaluation: EvalPass) -> list[Accumulator]:
    return list(evaluation.accumulators.values())


def _without_dropout(plan: Plan) -> dict[Form, Form]:
    """The results of operators that only training has -> their operands."""
    found = {}
    for planned in plan.ops:
        if operator(plan, planned).train_only:
            first = planned.operands[0]
            found[plan.graph.ops[planned.op].results[0], -1] = first.value, first.conversion
    return found


def evaluated_steps(plan: Plan, evaluation: EvalPass) -> frozenset[Step]:
    """The steps before the accumulators, without the operators that only training has."""
    wanted: list[Form] = []
    # A sum of losses needs no count of its items: it is divided by what all batches together have.
    step_inputs = phases(plan).step_inputs
    for accumulator in evaluation.accumulators.values():
        if accumulator.op >= 0:
            read = ((use.value, made_form(plan, use.conversion)) for use in plan.ops[accumulator.op].operands)
            wanted.extend(at for at in read if at not in step_inputs)
        else:
            wanted.append(accumulator.form)
    steps = steps_for(plan, [*wanted, *evaluation.predicted])
    return frozenset(s for s in steps if s.kind != "op" or not operator(plan, plan.ops[s.index]).train_only)


def _total_block(writer: StatementWriter, accumulator: Accumulator, name: str) -> Titled:
    """The statement of one accumulator: its local sum and count, float64."""
    ranked = writer.plan.meshes[accumulator.mesh].ranked(accumulator.pending)
    marks = f" +{_axes_text(ranked)}" if ranked else ""
    comment = "the items of this batch" if accumulator.joined else f"f64[2]  (sum, count){marks}"
    if accumulator.op < 0:
        return Titled("", [Stmt(around(f"{name} = ", _carried_text(writer, accumulator)), comment)])
    planned = writer.plan.ops[accumulator.op]
    title = place(writer.plan.graph.ops[planned.op], writer.plan.graph, writer.plan.program.source).title
    site = writer.sites.site(planned)
    block, texts = Titled(title, writer.checked(planned)), []
    for use, text in zip(planned.operands, site.operands, strict=True):
        if use.layout.pending:
            whole = writer.sizes.taken.claim(f"{text.removesuffix('_pending')}_whole")
            group = writer.sizes.groups.text(use.layout.pending, use.layout.mesh)
            layout = replace(use.layout, pending=())
            made = around(f"{whole} = ", RT("all_reduce", text, group))
            block.lines.append(Stmt(made, writer.comment(use.value, layout)))
            text = whole
        texts.append(text)
    accumulate = operator(writer.plan, planned).accumulate
    if accumulate is None:
        raise InternalError(f"operator {operator(writer.plan, planned).name} reduces, but has no text to accumulate")
    block.lines.append(Stmt(around(f"{name} = ", accumulate(replace(site, operands=tuple(texts)))), comment))
    return block


def _carried_text(writer: StatementWriter, accumulator: Accumulator) -> Code:
    """A number without the batch, once for all ranks that sum it, so that sum / count is it."""
    value = writer.names[accumulator.form]
    mesh = writer.plan.meshes[layout_of(writer.plan, accumulator.form).mesh]
    degree = mesh.degree(accumulator.pending)
    ones = TORCH("ones_like", value, dtype=TORCH_DTYPES["f64"])
    return TORCH("stack", (method(value, "double"), infix("/", ones, degree) if degree > 1 else ones))


def _axes_text(axes: tuple[str, ...]) -> str:
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def finish_text(plan: Plan, evaluation: EvalPass) -> Code:
    """`def finish(totals): ...`: from sums over the set to the loss and metrics."""
    own = short_names(plan.graph)
    taken = LocalSizes(plan, Groups(plan.meshes)).taken
    used = {a.value for a in _ordered(evaluation)}
    after = [at for at in evaluation.after if not received(plan, Step("op", at))]
    used.update(value for at in after for value in plan.graph.ops[plan.ops[at].op].results)
    names = {(value, -1): taken.claim(own[value]) for value in sorted(used)}
    for op in plan.graph.ops:
        if op.operator == TRANSFER and (op.operands[0], -1) in names:
            names[op.results[0], -1] = names[op.operands[0], -1]
    totals = [Stmt(around(f"{names[a.value, -1]} = ", _total_text(plan, a))) for a in _ordered(evaluation)]
    blocks = [Titled("", totals)]
    blocks.extend(_after_block(plan, at, names) for at in after)
    shown = {name: names[value, -1] for name, value in wanted_values(plan).items()}
    return function_text("def finish(totals):", [], blocks_text(blocks), f"    return {dict_text(shown)}")


def _total_text(plan: Plan, accumulator: Accumulator) -> str:
    total = f"totals[{literal(accumulator.name)}]"
    if accumulator.joined:
        return _joined_text(plan, accumulator, total)
    summed = accumulator.op >= 0 and operator(plan, plan.ops[accumulator.op]).reduces is Total.SUM
    return f"{total}[0]" if summed else f"{total}[0] / {total}[1]"


def _joined_text(plan: Plan, accumulator: Accumulator, total: str) -> str:
    """An operator that needs all items, on those of the whole set."""
    planned = plan.ops[accumulator.op]
    forms = {form(use): f"{total}[{at}]" for at, use in enumerate(planned.operands)}
    whole = replace(planned, factor_axes=((),) * len(planned.factor_axes))
    return operator(plan, planned).emit(Sites(plan, forms, LocalSizes(plan, Groups(plan.meshes)), False).site(whole))


def _after_block(plan: Plan, at: int, names: dict[Form, str]) -> Titled:
    """One operator on whole numbers; no axis splits it any more."""
    planned = plan.ops[at]
    op = plan.graph.ops[planned.op]
    constants = {use.value: number_text(plan.graph.values[use.value].constant or 0) for use in planned.operands}
    whole = replace(planned, factor_axes=((),) * len(op.rule.factors))
    forms = {form(use): names.get((use.value, -1), constants[use.value]) for use in planned.operands}
    site = Sites(plan, forms, LocalSizes(plan, Groups(plan.meshes)), False).site(whole)
    title = place(op, plan.graph, plan.program.source).title
    return Titled(title, [Stmt(around(f"{names[op.results[0], -1]} = ", operator(plan, planned).emit(site)))])
