"""A checked program, a strategy and a rank count -> the plan: layouts, conversions, storage and the
order of steps.

Rules are resolved by resolve.py, layouts chosen by propagate.py and replication.py, conversions
grown by conversions.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, Kind
from shardlang.hints.nearest import offer
from shardlang.plan.demand import ResolvedStrategy
from shardlang.plan.layouts.assignment import Assignment
from shardlang.plan.layouts.conversions import Conversions, place_conversions
from shardlang.plan.layouts.inside import inside_bytes
from shardlang.plan.layouts.known import LayoutTables
from shardlang.plan.layouts.local_search import local_search
from shardlang.plan.layouts.op_classes import Planning, build
from shardlang.plan.layouts.propagate import propagate
from shardlang.plan.layouts.replication import replication
from shardlang.plan.layouts.storage import sharded
from shardlang.plan.plan import Conversion, Move, OperandUse, ParamPlan, Plan, PlannedOp, Step
from shardlang.plan.redistribute.cheapest import MOST_LAYOUTS, TooManyLayouts, forget
from shardlang.plan.redistribute.searches import EXACT_AXES
from shardlang.plan.resolve import resolve
from shardlang.plan.rewrite.tables import check_rows, with_tables
from shardlang.plan.strategy.axis_sizes import RANKS_LIMIT
from shardlang.syntax import ast
from shardlang.types.layout import Layout


def can_be_planned(ranks: int, sink: Sink) -> bool:
    """Whether there can be a plan for so many ranks; reports SH303 where there are too many."""
    if ranks > RANKS_LIMIT:
        sink.report("SH303", f"{ranks} ranks are more than a plan can be for", None, help=f"at most {RANKS_LIMIT:,}")
    return ranks <= RANKS_LIMIT


def laid_out(
    program: CheckedProgram, strategy: ast.Strategy | None, ranks: int, sink: Sink, like: Plan | None = None,
    known: LayoutTables | None = None, heard: bool = False,
) -> Plan | None:  # fmt: skip
    """The plan by a strategy, whether or not a device's memory has room for it; None after
    mistakes. like: a plan by a strategy that says the same but for ZeRO and the size of buckets,
    on which no layout depends. known: what plans share. heard: as of `resolve`."""
    resolved = resolve(program, strategy, ranks, sink, heard)
    if resolved is None or sink.failed:
        return None
    try:
        made = _arranged(program, resolved, sink, known) if like is None else _stored_anew(like, resolved)
    except TooManyLayouts:
        _report_layouts(resolved, strategy, sink)
        return None
    if made is not None:
        check_rows(program, made, sink)
    return None if sink.failed else made


def _arranged(
    program: CheckedProgram, resolved: ResolvedStrategy, sink: Sink, known: LayoutTables | None
) -> Plan | None:
    """The plan of a strategy with chosen layouts and conversions; None after mistakes."""
    if resolved.graph is not None:
        program = replace(program, graph=resolved.graph)
    planning = build(program.graph, resolved, None if forget(resolved.meshes) else known)
    table = planning.table
    chosen = replication(planning, local_search(planning, propagate(planning), table), table)
    placed = place_conversions(planning, chosen, table)
    if resolved.strict:
        report_redistributions(planning, placed, sink)
    return None if sink.failed else assemble(program, planning, chosen, placed)


def _report_layouts(resolved: ResolvedStrategy, strategy: ast.Strategy | None, sink: Sink) -> None:
    axes = max((sum(a.size > 1 for a in mesh.timeless.axes) for mesh in resolved.meshes), default=0)
    mesh = next((rule for rule in strategy.rules if isinstance(rule, ast.Mesh)), None) if strategy else None
    sink.report(
        "SH330", f"values go between more than {MOST_LAYOUTS:,} layouts on a mesh of {axes} axes",
        mesh.span if mesh is not None else None, f"{axes} axes that have more than one rank",
        help=("join axes that always stand together: `a = 4` in place of `a0 = 2, a1 = 2`",
              f"or let the layouts of neighbours differ in at most {EXACT_AXES} axes: those are always found"),
    )  # fmt: skip


def _stored_anew(like: Plan, resolved: ResolvedStrategy) -> Plan:
    """The plan with the ZeRO and the buckets of another strategy."""
    forms = {param.value: (param.stored, param.reduce_axes) for param in like.params.values()}
    written = like.program.graph
    params, graph = with_tables(like.program, written, _params(written, resolved, forms), like.conversions)
    return replace(
        like, strategy=resolved.name, graph=graph, params=params, bucket_bytes=resolved.bucket_bytes,
        recompute=resolved.recompute,
    )  # fmt: skip


def choose_strategy(
    program: CheckedProgram, name: str | None, ranks: int, sink: Sink
) -> tuple[bool, ast.Strategy | None]:
    """(True, the strategy or None for none), or (False, None) after reporting."""
    if name is None:
        if ranks == 1 or program.strategies:
            return True, None if ranks == 1 else program.strategies[0]
        batch = program.graph.batch.name if program.graph.batch else "batch"
        sink.report(
            "SH302", f"a program without a strategy runs on 1 rank, and {ranks} are given", None,
            help=f"add `strategy ddp {{`, `mesh dp = auto`, `split {batch} over dp` and `}}`, each on a line",
        )  # fmt: skip
        return False, None
    named = strategy_named(program, name, sink)
    return named is not None, named


def strategy_named(program: CheckedProgram, name: str, sink: Sink) -> ast.Strategy | None:
    """The strategy of this name; None after reporting that there is none."""
    for strategy in program.strategies:
        if strategy.name.text == name:
            return strategy
    names = [s.name.text for s in program.strategies]
    help = offer(name, names, f"the strategies are {', '.join(names)}" if names else "the file has none")
    sink.report("SH301", f"{program.source.name} has no strategy `{name}`", None, help=help)
    return None


def assemble(program: CheckedProgram, planning: Planning, chosen: list[Assignment], placed: Conversions) -> Plan:
    """Everything chosen, as one frozen plan."""
    strategy, ops = planning.strategy, _planned_ops(planning, chosen, placed)
    forms = {value: (form.layout, form.root.replicated) for value, form in placed.stored.items()}
    given = _params(planning.graph, strategy, forms)
    params, graph = with_tables(program, planning.graph, given, placed.conversions)
    return Plan(
        program=program, graph=graph, strategy=strategy.name, ranks=strategy.ranks or 1,
        meshes=planning.meshes, produced=placed.produced, ops=ops,
        conversions=tuple(placed.conversions), params=params,
        steps=_steps(planning, ops, placed.conversions), bucket_bytes=strategy.bucket_bytes, strict=strategy.strict,
        pipeline=strategy.pipeline, recompute=strategy.recompute, sizes=strategy.sizes, memory_of=strategy.hosted,
        microbatches=strategy.times.count if strategy.times else 1,
    )  # fmt: skip


def _planned_ops(planning: Planning, chosen: list[Assignment], placed: Conversions) -> tuple[PlannedOp, ...]:
    demands, uses, produced = planning.strategy.demands, placed.uses, placed.produced
    inside: dict[tuple[object, Assignment], tuple[tuple[int, tuple[str, ...], int, int], ...]]
    inside = planning.shared(inside_bytes, dict)
    planned = []
    for op in planning.graph.ops:
        assignment, kind = chosen[op.id], planning.classes[op.id]
        key = (kind, assignment)
        if key not in inside:
            inside[key] = tuple(inside_bytes(kind, assignment, planning.meshes[assignment.mesh]))
        demand = demands.get(op.id)
        operands = tuple([uses[op.id, i] for i in range(len(op.operands))])
        results = tuple([produced[v] for v in op.results])
        by = demand.chosen if demand else "propagated"
        planned.append(PlannedOp(op.id, assignment.factors, operands, results, inside[key], by, assignment.mesh))
    return tuple(planned)


def _params(
    graph: Graph, strategy: ResolvedStrategy, forms: Mapping[int, tuple[Layout, tuple[str, ...]]]
) -> dict[int, ParamPlan]:
    """Parameters and states; ZeRO cuts over its axes along which the stored form is whole. forms:
    layouts as stored, and the axes over which gradients are reduced."""
    found = {}
    for value, (layout, reduced) in forms.items():
        it = graph.values[value]
        if it.kind not in (Kind.PARAM, Kind.STATE):
            continue
        rule = strategy.zero.get(value) if it.kind is Kind.PARAM else None
        if rule is not None and rule.level < 3 and graph.frozen(value):
            rule = None  # what is frozen has neither a gradient nor optimizer state to cut
        axes = sharded(rule.axes, layout, strategy.meshes) if rule and it.type.shape else ()
        level = rule.level if rule and axes else 0
        keep = rule is not None and level == 3 and rule.keep
        found[value] = ParamPlan(value, layout, reduced, level, axes, keep=keep)
    return found


def _steps(planning: Planning, ops: Sequence[PlannedOp], conversions: list[Conversion]) -> tuple[Step, ...]:
    """Operators in order, the loss's first; conversions right before the first step that reads."""
    done: set[int] = set()
    steps: list[Step] = []

    def convert(at: int) -> None:
        waiting = []
        while at >= 0 and at not in done:
            done.add(at)
            waiting.append(at)
            at = conversions[at].parent
        steps.extend(Step("conversion", i) for i in reversed(waiting))

    for op in sorted(planning.graph.ops, key=lambda op: op.section != "loss"):
        for use in ops[op.id].operands:
            if use.conversion >= 0:
                convert(use.conversion)
        steps.append(Step("op", op.id))
    for conversion in conversions:
        convert(conversion.id)
    return tuple(steps)


def report_redistributions(planning: Planning, placed: Conversions, sink: Sink) -> None:
    """`strict`: a conversion that sends data is an error unless a rule fixes the form it makes."""
    graph, seen = planning.graph, set()
    for (op, _), use in placed.uses.items():
        value = graph.values[use.value]
        move = _inserted(planning, placed, use)
        if move is None or op in planning.strategy.demands or value.id in seen:
            continue
        seen.add(value.id)
        sink.report(
            "SH350",
            f"`{value.name}` is redistributed ({move.kind.value} over {', '.join(move.axes)}), "
            "and the strategy is strict", graph.ops[op].span, "needs it in another layout",
            labels=[(value.span, f"`{value.name}` is made here")],
            help=f"ask for it with a rule for `{graph.ops[op].path}`, or drop `strict`",
        )  # fmt: skip


def _inserted(planning: Planning, placed: Conversions, use: OperandUse) -> Move | None:
    """The last sending move on the way to a use that no rule for the value (`-> (..)`) asks for."""
    producer = planning.graph.producers.get(use.value)
    demand = planning.strategy.demands.get(producer) if producer is not None else None
    at = use.conversion
    while at >= 0 and not (demand is not None and placed.conversions[at].to == demand.result):
        if placed.conversions[at].move.forward_bytes:
            return placed.conversions[at].move
        at = placed.conversions[at].parent
    return None
