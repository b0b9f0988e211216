"""A plan -> the same plan in one floating type: what `shardc verify` emits and runs in float64.

Layouts, operators and conversions stay; only element types differ, in values and in casts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardlang.graph.graph import Graph, GraphValue, Op
from shardlang.plan.plan import Plan
from shardlang.types.dim import FLOATS


def in_type(plan: Plan, dtype: str) -> Plan:
    """All floating types of the plan become `dtype`, "f64" or "f32" (a named "f64" stays)."""
    graph = graph_in_type(plan.graph, dtype)
    training = plan.program.training
    if training is not None:
        training = replace(training, precision=dtype)
    return replace(plan, graph=graph, program=replace(plan.program, graph=graph, training=training))


def graph_in_type(graph: Graph, dtype: str) -> Graph:
    """A graph with all floating types as `dtype`, as `in_type` does it."""

    def changed(name: str) -> str:
        return dtype if name in FLOATS and name != "f64" else name

    def value(old: GraphValue) -> GraphValue:
        return replace(old, type=replace(old.type, dtype=changed(old.type.dtype)))

    def op(old: Op) -> Op:
        attrs: dict[str, Any] = dict(old.attrs)
        if isinstance(attrs.get("dtype"), str):
            attrs["dtype"] = changed(attrs["dtype"])
        return replace(old, attrs=attrs)

    return replace(graph, values=tuple(map(value, graph.values)), ops=tuple(map(op, graph.ops)))
