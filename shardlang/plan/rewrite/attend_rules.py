"""`attend` rules -> the graph whose attentions exchange parts of a cut sequence; and what these
rules need, once it is known how sequences are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.demand import AttendRule, Demand
from shardlang.plan.dim_factors import of_factors
from shardlang.plan.rewrite.insert import Rewriting
from shardlang.sources.source import Span
from shardlang.types.layout import PartSizes
from shardlang.types.mesh import Mesh

Rules = Mapping[int, AttendRule]


def attending(graph: Graph, rules: Rules) -> Graph:
    """The graph with rules of factors as `attend` says. rules: by the results they cover."""
    if not rules:
        return graph
    work = Rewriting(graph)
    for op in graph.ops:
        operator, rule = REGISTRY[op.operator], rules.get(op.results[0])
        work.keep(op, rule=operator.exchanging(op.rule, op.attrs, rule.ring) if rule else None)
    return work.result()


def check_attended(
    graph: Graph, rules: Rules, demands: Mapping[int, Demand], meshes: Sequence[Mesh], sizes: PartSizes, sink: Sink
) -> None:
    """Reports a rule that changes nothing, and a sequence that ranks cannot share evenly."""
    idle = {rule.span: rule for rule in rules.values()}
    wrong: dict[Span, str] = {}
    for value, rule in rules.items():
        op = graph.ops[graph.producers[value]]
        demand, marked = demands.get(op.id), [f for f, factor in enumerate(op.rule.factors) if factor.exchanged]
        if marked and demand is not None and all(demand.factors[f] is not None for f in marked):
            if demand.chosen == "split" or all(demand.factors[f] for f in marked):
                idle.pop(rule.span, None)
            by_hand = of_factors(op, graph, sizes)
            if meshes and (fact := _lack(op, marked, demand, meshes[demand.mesh], by_hand)):
                wrong.setdefault(rule.span, f"`{rule}` gives {fact}")
    for span, fact in wrong.items():
        sink.report("SH304", fact, span, help="make them alike, or leave the rule out")
    for span, rule in idle.items():
        causal = "" if rule.ring else " causal"
        sink.report(
            "SH308", f"no{causal} attention that the rule covers has its sequence cut by a `split`", span,
            help="cut it, as in `split seq over cp`, or leave the rule out",
        )  # fmt: skip


def _lack(op: Op, marked: Sequence[int], demand: Demand, mesh: Mesh, by_hand: Mapping[int, tuple[int, ...]]) -> str:
    """How a sequence is no multiple of the chunks that all ranks together compute; "" if it is."""
    pieces = max((how.pieces for f in marked if (how := op.rule.factors[f].exchanged) is not None), default=1)
    for f in marked:
        factor, ranks = op.rule.factors[f], mesh.degree(demand.factors[f] or ())
        chunks = pieces * ranks
        if ranks > 1 and factor.size % chunks:
            each = "two chunks" if pieces > 1 else "a chunk"
            return f"each of {ranks} ranks {each} of `{factor.name}`, and {factor.size} is no multiple of {chunks}"
        if ranks > 1 and len(parts := by_hand.get(f, ())) == ranks and len({*parts}) > 1:
            return f"all ranks as much of `{factor.name}`, and its parts are {', '.join(map(str, parts))}"
    return ""
