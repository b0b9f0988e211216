"""A parameter that two rules would store in two layouts: an error, since neither can be meant for both.

Looks only at operators whose rule fixes every dim of the parameter (`shard`, pins); `split` rules agree by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, Kind
from shardlang.plan.demand import Demand
from shardlang.source import Span


def check_parameters(graph: Graph, demands: Mapping[int, Demand], rule_spans: Mapping[int, Span], sink: Sink) -> None:
    """Reports SH318 for each parameter whose users' rules cut it differently."""
    found: dict[int, tuple[tuple[int, tuple[tuple[str, ...], ...]], int]] = {}
    for op_id, demand in demands.items():
        if not demand.complete:
            continue
        op = graph.ops[op_id]
        for value, dims in zip(op.operands, op.rule.operands, strict=True):
            if graph.values[value].kind is not Kind.PARAM:
                continue
            cut = tuple(tuple(a for f in dim for a in demand.factors[f] or ()) for dim in dims)
            first = found.setdefault(value, ((demand.mesh, cut), op_id))
            if first[0] != (demand.mesh, cut):
                _report(graph, value, rule_spans[first[1]], rule_spans[op_id], sink)


def _report(graph: Graph, value: int, one: Span, two: Span, sink: Sink) -> None:
    name = graph.values[value].path
    sink.report(
        "SH318", f"parameter `{name}` would have two layouts", two, "cut one way by this rule",
        labels=[(one, "cut another way by this rule"), (graph.values[value].span, "declared here")],
        help=f"cut `{name}` the same in both rules; a copy with its own layout is a parameter of its own",
    )  # fmt: skip
