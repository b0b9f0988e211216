"""Checks a finished plan against section 3 of the layout calculus, from the plan alone: a second opinion for tests.

Shares no code with propagation: states are read axis by axis from layouts, and each move is looked up in the table
again.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardlang.graph.graph import Kind
from shardlang.ops.rule import FactorRule, Split, shared_axes
from shardlang.plan.plan import Conversion, MoveKind, Plan, PlannedOp
from shardlang.types.layout import Layout

# forward state -> state after, for moves that do not permute or view.
STATES = {
    MoveKind.I_TO_R: "IR", MoveKind.P_TO_I: "PI", MoveKind.P_TO_R: "PR", MoveKind.P_TO_S: "PS", MoveKind.S_TO_R: "SR",
    MoveKind.S_TO_I: "SI", MoveKind.I_TO_S: "IS", MoveKind.R_TO_S: "RS", MoveKind.S_TO_S: "SS", MoveKind.I_TO_P: "IP",
    MoveKind.R_TO_P: "RP", MoveKind.R_TO_I: "RI", MoveKind.S_TO_P: "SP",
}  # fmt: skip


def verify(plan: Plan, uneven: frozenset[str] = frozenset()) -> list[str]:
    """The faults of a plan, in words; empty if nothing is. `uneven`: names of dims that need not divide."""
    return [*_layouts(plan, uneven), *_operators(plan), *_conversions(plan), *_steps(plan), *_leaves(plan)]


def _layouts(plan: Plan, uneven: frozenset[str]) -> Iterator[str]:
    """No axis twice, every dim divides, and pending only where something floats."""
    forms = [(v, x) for v, x in plan.produced.items()] + [(c.value, c.to) for c in plan.conversions]
    for value, layout in dict.fromkeys(forms):
        type = plan.graph.values[value].type
        named = [*layout.split_axes(), *layout.pending, *layout.replicated]
        if len(set(named)) != len(named):
            yield f"value {value}: an axis twice in {layout}"
        for size, term, axes in zip(type.shape, type.dims, layout.dims, strict=True):
            degree = plan.meshes[layout.mesh].degree(axes)
            if size % degree and not {d.name for d in term} & uneven:
                yield f"value {value}: {size} does not divide over {axes}"


def _operators(plan: Plan) -> Iterator[str]:
    for op in plan.ops:
        rule = plan.graph.ops[op.op].rule
        gradient = [
            plan.graph.values[u.value].gradient and plan.graph.ops[op.op].section == "loss" for u in op.operands
        ]
        for axis in plan.meshes[op.mesh].axes:
            yield from (f"op {op.op} on {axis.name}: {x}" for x in _along(rule, op, axis.name, gradient))
        yield from _products(plan, rule, op)


def _along(rule: FactorRule, op: PlannedOp, axis: str, gradient: list[bool]) -> Iterator[str]:
    """Exactly one of: a factor split, unsplit, pending passed through; operands and results as that says."""
    states = [u.layout.state(axis) for u in op.operands]
    results = [x.state(axis) for x in op.results]
    split = [f for f, axes in enumerate(op.factor_axes) if axis in axes]
    if axis in shared_axes(rule, op.factor_axes):
        yield from _exchange(rule, axis, op, gradient)
    elif len(split) > 1:
        yield "splits two factors"
    elif split:
        yield from _split(rule, split[0], states, results, gradient)
    elif "P" in states:
        pending = tuple(i for i, s in enumerate(states) if s == "P")
        good = pending in rule.through and all(
            _is(states[i], "R", gradient[i]) for i in range(len(states)) if i not in pending
        )
        if not good or set(results) != {"P"}:
            yield f"pending operands {states} give {results}"
    else:
        strict = {s for s, g in zip(states, gradient, strict=True) if g}
        if "S" in states or "S" in results or len(strict) > 1:
            yield f"is unsplit with operands {states} and results {results}"
        elif strict and any(gradient) and set(results) - strict:
            yield f"is unsplit with operands {states}, and its results are {results}"


def _exchange(rule: FactorRule, axis: str, op: PlannedOp, gradient: list[bool]) -> Iterator[str]:
    """Rows of a table for who asks: everything with a dim of them is split, and nothing pending."""
    if set(shared_axes(rule, op.factor_axes)) != {a for f, x in zip(rule.factors, op.factor_axes, strict=True)
                                                  if f.exchanged and f.exchanged.pieces == 1 for a in x}:  # fmt: skip
        yield "exchanges rows over some of the axes that split them"
    cut = {f for f, axes in enumerate(op.factor_axes) if axis in axes}
    has = [any(f in cut for dim in dims for f in dim) for dims in (*rule.operands, *rule.results)]
    states = [*(use.layout.state(axis) for use in op.operands), *(x.state(axis) for x in op.results)]
    if any((state == "S") != split for state, split in zip(states, has, strict=True)):
        yield "exchanges rows of what is not split"
    whole = zip(states[: len(gradient)], has[: len(gradient)], gradient, strict=True)
    if not all(split or _is(state, "R", learns) for state, split, learns in whole):
        yield "exchanges rows beside a whole operand whose gradient is not summed"


def _split(rule: FactorRule, factor: int, states: list[str], results: list[str], gradient: list[bool]) -> Iterator[str]:
    how = rule.factors[factor].split
    if how is Split.WHOLE:
        yield f"splits {rule.factors[factor].name}, which must be whole"
    for i, dims in enumerate(rule.operands):
        has = any(factor in d for d in dims)
        if not (states[i] == "S" if has else _is(states[i], "R", gradient[i])):
            yield f"operand {i} is {states[i]}"
    for i, dims in enumerate(rule.results):
        expected = "S" if any(factor in d for d in dims) else "I" if how is Split.INSIDE else "P"
        if results[i] != expected:
            yield f"result {i} is {results[i]}, not {expected}"


def _is(state: str, wanted: str, gradient: bool) -> bool:
    return state == wanted or (not gradient and {state, wanted} == {"I", "R"})


def _products(plan: Plan, rule: FactorRule, op: PlannedOp) -> Iterator[str]:
    """The axes of each tensor dim are its factors' axes in order, minor factors only after majors are used up."""
    layouts = [*(u.layout for u in op.operands), *op.results]
    for dims, layout in zip((*rule.operands, *rule.results), layouts, strict=True):
        for factors, axes in zip(dims, layout.dims, strict=True):
            if axes != tuple(a for f in factors for a in op.factor_axes[f]):
                yield f"op {op.op}: a dim is cut over {axes}, its factors are not"
            full = True
            for f in factors:
                degree = plan.meshes[op.mesh].degree(op.factor_axes[f])
                if degree > 1 and not full:
                    yield f"op {op.op}: {rule.factors[f].name} is cut before what is major to it is used up"
                full = full and degree == rule.factors[f].size


def _conversions(plan: Plan) -> Iterator[str]:
    for conversion in plan.conversions:
        before = plan.produced[conversion.value] if conversion.parent < 0 else plan.conversions[conversion.parent].to
        if conversion.parent >= 0 and plan.conversions[conversion.parent].value != conversion.value:
            yield f"conversion {conversion.id} hangs off another value's"
        if conversion.parent >= 0 and conversion.gradient and not plan.conversions[conversion.parent].gradient:
            yield f"conversion {conversion.id} has a gradient and its parent none"
        yield from (f"conversion {conversion.id}: {x}" for x in _move(conversion, before))
    for op in plan.ops:
        for use in op.operands:
            form = plan.produced[use.value] if use.conversion < 0 else plan.conversions[use.conversion].to
            flags = plan.graph.values[use.value].gradient and plan.graph.ops[op.op].section == "loss"
            same = form == use.layout or (not flags and _without_marks(form) == _without_marks(use.layout))
            if not same:
                yield f"op {op.op} reads value {use.value} as {use.layout}, which is {form}"


def _without_marks(layout: Layout) -> tuple[object, ...]:
    return layout.dims, layout.pending, layout.mesh


def _move(conversion: Conversion, before: Layout) -> Iterator[str]:
    move, after = conversion.move, conversion.to
    if move.kind in (MoveKind.PERMUTE, MoveKind.VIEW):
        return
    source, target = STATES[move.kind][0], STATES[move.kind][1]
    names = {
        *before.split_axes(),
        *before.pending,
        *before.replicated,
        *after.split_axes(),
        *after.pending,
        *after.replicated,
    }
    for axis in sorted(names | set(move.axes)):
        expected = (source, target) if axis in move.axes else None
        found = before.state(axis), after.state(axis)
        if (expected and found != expected) or (not expected and found[0] != found[1]):
            yield f"{move.kind.value} over {move.axes} takes {axis} from {found[0]} to {found[1]}"
    if source == "S":
        dim = move.from_dim if target == "S" else move.dim
        if before.dims[dim][len(before.dims[dim]) - len(move.axes) :] != move.axes:
            yield f"{move.kind.value} takes {move.axes} off {before.dims[dim]}, not the minor-most"
    if target == "S" and after.dims[move.dim][len(after.dims[move.dim]) - len(move.axes) :] != move.axes:
        yield f"{move.kind.value} does not append {move.axes} as minor-most"


def _steps(plan: Plan) -> Iterator[str]:
    """Everything once, and nothing before what it reads."""
    made = {(v, -1) for v in plan.produced if plan.graph.values[v].kind is not Kind.RESULT}
    for step in plan.steps:
        if step.kind == "conversion":
            conversion = plan.conversions[step.index]
            reads, makes = [(conversion.value, conversion.parent)], [(conversion.value, step.index)]
        else:
            op = plan.ops[step.index]
            reads = [(u.value, u.conversion) for u in op.operands]
            makes = [(v, -1) for v in plan.graph.ops[op.op].results]
        for form in reads:
            if form not in made:
                yield f"{step} reads {form} before it is made"
        if made & set(makes):
            yield f"{step} makes what is there already"
        made.update(makes)
    expected = len(plan.ops) + len(plan.conversions)
    if len(plan.steps) != expected:
        yield f"{len(plan.steps)} steps for {expected} operators and conversions"


def _leaves(plan: Plan) -> Iterator[str]:
    """Stored forms are split or identical; a gradient is reduced exactly where the form that operators start from
    is R.
    """
    for value, param in plan.params.items():
        if param.stored.pending or param.stored.replicated:
            yield f"parameter {value} is stored as {param.stored}"
        if param.reduce_axes != plan.produced[value].replicated or plan.produced[value].dims != param.stored.dims:
            yield f"parameter {value} starts as {plan.produced[value]}, stored {param}"
    loss = plan.graph.loss
    if loss is not None and plan.produced[loss].replicated:
        yield "the loss is R"
