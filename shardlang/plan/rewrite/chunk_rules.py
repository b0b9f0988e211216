"""`chunks` rules -> the graph whose losses are computed in chunks of rows, with the product that
makes their scores, so that all scores are never there at once.

The product, its bias and a cast to f32 become part of the loss: one operator, which reads what the
product reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.families.losses_in_chunks import chunked_rule
from shardlang.plan.demand import ChunkRule
from shardlang.plan.rewrite.insert import Rewriting, with_counts
from shardlang.sources.source import Span


@dataclass(frozen=True)
class ChunkedLoss:
    """The operators that become part of a loss, the product first, and the bias among what they
    read."""

    ops: tuple[Op, ...]
    bias: int | None = None


class _Unchunked(Exception):
    """Why a loss cannot be computed in chunks."""


def in_chunks(graph: Graph, rules: Mapping[int, ChunkRule], placed: Mapping[int, Span], sink: Sink) -> Graph:
    """The graph; reports losses that cannot be computed so. rules: by the results of losses.
    placed: values with a layout of their own."""
    if not rules:
        return graph
    graph = with_counts(graph)
    readers = _readers(graph)
    found: dict[int, tuple[Op, ChunkedLoss]] = {}
    gone: dict[int, int] = {}  # value -> the loss that it is part of
    for value, rule in rules.items():
        op = graph.ops[graph.producers[value]]
        try:
            taken = _taken(graph, op, readers)
        except _Unchunked as reason:
            sink.report(
                "SH329", f"{_shown(graph, value)} cannot be computed in chunks: {reason}", rule.span,
                labels=[(op.span, "the loss")],
                help="its scores are `einsum(hidden, weight -> [.., classes])`, or that and a bias, and nothing else "
                "reads them",
            )  # fmt: skip
            continue
        found[op.id] = op, taken
        gone.update((v, value) for each in taken.ops for v in each.results)
    for value in placed.keys() & gone.keys():
        by = _shown(graph, gone[value])
        fact = f"{_shown(graph, value)} has no layout: it is part of {by}, which is computed in chunks"
        labels = [(rules[gone[value]].span, "the chunks")]
        sink.report("SH309", fact, placed[value], labels=labels, help="keep one of the two rules")
    return _rewritten(graph, found, gone, rules)


def _rewritten(
    graph: Graph, found: Mapping[int, tuple[Op, ChunkedLoss]], gone: Collection[int], rules: Mapping[int, ChunkRule]
) -> Graph:
    work = Rewriting(graph)
    for op in graph.ops:
        if op.id in found:
            _, taken = found[op.id]
            work.ops.append(_chunked(graph, op, taken, rules[op.results[0]].count, len(work.ops)))
        elif op.results[0] not in gone:
            work.keep(op)
    return work.result()


def _chunked(graph: Graph, op: Op, taken: ChunkedLoss, count: int, id: int) -> Op:
    """The loss in chunks. Its operands: labels, hidden, weight, then bias and count, where they are
    there."""
    hidden, weight = taken.ops[0].operands
    bias = () if taken.bias is None else (taken.bias,)
    operands = (op.operands[1], hidden, weight, *bias, *op.operands[2:])
    types = [graph.values[v].type for v in operands]
    at = types[2].dims.index(graph.values[op.operands[0]].type.dims[op.attrs["dim"]])
    attrs = {**op.attrs, "dim": at, "bias": bool(bias), "chunks": count}
    return replace(
        op, id=id, operator=REGISTRY[op.operator].chunked, operands=operands, attrs=attrs,
        rule=chunked_rule(types, at, op.attrs["label_smoothing"]),
    )  # fmt: skip


def _taken(graph: Graph, loss: Op, readers: Mapping[int, list[int | str]]) -> ChunkedLoss:
    """The product behind the scores of a loss, with all between."""
    value, bias, between = loss.operands[0], None, list[Op]()
    classes = graph.values[value].type.dims[loss.attrs["dim"]]
    while True:
        if len(readers[value]) > 1:
            shown = (each if isinstance(each, str) else _shown(graph, each) for each in readers[value])
            by = " and ".join(dict.fromkeys(shown))
            raise _Unchunked(f"{len(readers[value])} operators read {_shown(graph, value)} ({by}), so it is made whole")
        if value not in graph.producers:
            raise _Unchunked(f"{_shown(graph, value)} is no product")
        op = graph.ops[graph.producers[value]]
        dims = [graph.values[v].type.dims for v in op.operands]
        between.insert(0, op)
        if REGISTRY[op.operator].moves and dims == [graph.values[value].type.dims]:  # a cast
            value = op.operands[0]
        elif REGISTRY[op.operator].symbol == "+" and bias is None and dims[1:] == [(classes,)]:
            value, bias = op.operands
        else:
            break
    label = graph.values[loss.operands[1]].type.dims
    rows = (*label, *(inner := dims[0][-1:]))
    parts = [d for term in (*rows, classes) for d in term]
    weights = ((classes, *inner), (*inner, classes))
    if not _is_product(op) or dims[0] != rows or dims[1] not in weights or len({*parts}) < len(parts):
        raise _Unchunked(f"{_shown(graph, value)} is no product of rows with one weight")
    return ChunkedLoss(tuple(between), bias)


def _is_product(op: Op) -> bool:
    return op.rule.through == ((0,), (1,)) and REGISTRY[op.operator].flops(op.rule, op.attrs) > 0


def _readers(graph: Graph) -> dict[int, list[int | str]]:
    """Value -> what reads it: the result of an operator, or a metric."""
    found: dict[int, list[int | str]] = {}
    for op in graph.ops:
        for value in op.operands:
            found.setdefault(value, []).append(op.results[0])
    for name, value in graph.metrics.items():
        found.setdefault(value, []).append(f"the metric `{name}`")
    return found


def _shown(graph: Graph, value: int) -> str:
    return f"`{graph.shown(value)}`"
