"""A parameter that two rules would store in two layouts: an error, since neither can be meant for
both.

Looks only at operators whose rule fixes every dim of the parameter (`shard`, pins); `split` rules
agree by themselves."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, Kind
from shardlang.plan.demand import Demand
from shardlang.sources.source import Span


def check_parameters(graph: Graph, demands: Mapping[int, Demand], sink: Sink) -> None:
    """Reports SH318 for each parameter whose users' rules cut it differently."""
    found: dict[int, tuple[int, tuple[tuple[str, ...], ...], Span]] = {}
    for op, demand in ((graph.ops[at], demand) for at, demand in demands.items() if demand.complete):
        for value, dims in zip(op.operands, op.rule.operands, strict=True):
            cut = demand.mesh, demand.cut(dims), demand.span
            param = graph.values[value]
            if param.kind is Kind.PARAM and (first := found.setdefault(value, cut))[:2] != cut[:2]:
                path, other = param.path, (first[2], "cut another way by this rule")
                sink.report(
                    "SH318", f"parameter `{path}` would have two layouts", demand.span, "cut one way by this rule",
                    labels=[other, (param.span, "declared here")],
                    help=f"cut `{path}` the same in both rules; a copy with its own layout is a parameter of its own",
                )  # fmt: skip
