"""Which parameters are tables whose gradient is kept as rows: those that only `embedding` reads, and whose optimizer
touches only the rows of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from shardlang.check.program import OptimizerSetting, Program
from shardlang.graph.graph import Graph
from shardlang.plan.plan import Conversion, ParamPlan

_ROWS = ("adagrad", "ftrl", "lazy_adam")


def row_wise(setting: OptimizerSetting) -> bool:
    """Whether an optimizer leaves an element without gradient as it is, so that it need not see the others."""
    still = not setting.arguments.get("momentum") and not setting.arguments.get("weight_decay")
    return setting.kind in _ROWS or (setting.kind == "sgd" and still)


def with_tables(
    program: Program, graph: Graph, params: Mapping[int, ParamPlan], conversions: Iterable[Conversion]
) -> dict[int, ParamPlan]:
    """The parameters, tables among them marked `sparse`."""
    looked_up = _only_looked_up(graph)
    sent = {c.value for c in conversions if c.move.forward_bytes or c.move.backward_bytes}
    settings = program.training.optimizers if program.training else ()
    fitting = {value for setting in settings if row_wise(setting) for value in setting.params}
    tables = {
        value
        for value in looked_up & fitting - sent
        if params[value].zero == 0 and graph.values[value].type.dtype in ("f32", "f64")
    }
    return {value: replace(param, sparse=True) if value in tables else param for value, param in params.items()}


def _only_looked_up(graph: Graph) -> set[int]:
    """Parameters that nothing but `embedding` reads."""
    read = {value: True for value in graph.params}
    used: set[int] = set()
    for op in graph.ops:
        for at, value in enumerate(op.operands):
            if value in read:
                used.add(value)
                read[value] = read[value] and op.operator == "embedding" and at == 1
    return {value for value in used if read[value]}
