"""Tables: parameters that are only looked up. In a run of low precision a lookup casts the rows
that it reads, so that a table needs no copy. Its gradient is kept as rows where its optimizer
touches only the rows of the batch.

The strategy must not decide what such an optimizer does to a table. So ZeRO leaves out the tables
whose other rows would change under a dense gradient, and a plan that brings such a table whole to
its lookup is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from shardlang.check.program import CheckedProgram, OptimizerSetting
from shardlang.diagnostics.diagnostic import Sink
from shardlang.facts.optimizers import OPTIMIZERS, Rows
from shardlang.graph.graph import Graph, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.plan import Conversion, ParamPlan, Plan
from shardlang.types.dim import low, wide


def row_wise(setting: OptimizerSetting) -> bool:
    """Whether an optimizer leaves elements without gradient unchanged, so need not see them."""
    still = not setting.arguments.get("momentum") and not setting.arguments.get("weight_decay")
    return _rows(setting) is not Rows.CHANGED and still


def _rows(setting: OptimizerSetting) -> Rows:
    """An optimizer that a file declares sees all elements."""
    return OPTIMIZERS[setting.kind].rows if setting.own is None else Rows.CHANGED


def with_tables(
    program: CheckedProgram, graph: Graph, params: Mapping[int, ParamPlan], conversions: Iterable[Conversion]
) -> tuple[dict[int, ParamPlan], Graph]:
    """The parameters, tables among them marked `sparse`, and the graph, where lookups read a table
    in f32 and cast its rows. One that is sent whole, or gathered under ZeRO, has a copy in the low
    precision."""
    looked_up = _only_looked_up(graph)
    sent = {c.value for c in conversions if c.move.forward_bytes or c.move.backward_bytes}
    settings = program.training.optimizers if program.training else ()
    fitting = {value for setting in settings if row_wise(setting) for value in setting.params}
    alone = {value for setting in settings if _rows(setting) is Rows.LEFT_OUT for value in setting.params}
    tables = {v for v in looked_up & fitting - sent if params[v].zero == 0 or v in alone}
    rows = {v: replace(params[v], sparse=True, zero=0, zero_axes=()) for v in tables}
    found, values = {**params, **rows}, list(graph.values)
    narrow = [v for v in looked_up - sent if not found[v].zero and low(values[v].type.dtype)]
    for value in narrow:
        type = values[value].type
        values[value] = replace(values[value], type=replace(type, dtype=wide(type.dtype)))
    return found, replace(graph, values=tuple(values)) if narrow else graph


def check_rows(program: CheckedProgram, plan: Plan, sink: Sink) -> None:
    """Reports each table that is only looked up, in the program as it is written, and in the plan
    is not kept as rows, where that would change the result."""
    looked_up = _only_looked_up(program.graph)
    for setting in program.training.optimizers if program.training else ():
        for value in setting.params if _rows(setting) is Rows.LEFT_OUT else ():
            if value in looked_up and not plan.params[value].sparse:
                it = plan.graph.values[value]
                sink.report(
                    "SH400", f"`{it.path}` is brought whole to where it is looked up, while `{setting.kind}` changes "
                    "the rows of the batch alone, which is not there yet", it.span,
                    help="split and place its lookup as the table is, or take an optimizer of all rows: `adam`",
                )  # fmt: skip


def gradient_lookups(graph: Graph, table: int) -> set[int]:
    """The operators (ids) that look up rows of a table for the loss: only these have gradients."""
    return {
        op.id
        for op in graph.ops
        if (at := REGISTRY[op.operator].table) is not None
        and op.operands[at] == table
        and graph.values[op.results[0]].gradient
    }


def adds_rows(plan: Plan, ops: Iterable[Op]) -> bool:
    """Whether gradients that are rows are added: several of these operators look up one table."""
    tables = Counter(op.operands[at] for op in ops if (at := REGISTRY[op.operator].table) is not None)
    return any(count > 1 and value in plan.params and plan.params[value].sparse for value, count in tables.items())


def _only_looked_up(graph: Graph) -> set[int]:
    """Parameters that nothing reads but lookups of their rows."""
    params = set(graph.params)
    reads = [(v, op, at) for op in graph.ops for at, v in enumerate(op.operands) if v in params]
    others = {value for value, op, at in reads if REGISTRY[op.operator].table != at}
    return {value for value, _, _ in reads} - others
