"""A graph -> whether what its operators move are states that nothing else reads: `batch_norm` moves
its statistics.

A state changes as the step goes on. Another operator would read it before or after, which differs
between one device, ranks, stages and what is computed again for backward: there is no one answer,
so it is refused."""

from __future__ import annotations

from collections.abc import Iterator

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.ops.declaration import REGISTRY, written

_NOUNS = {Kind.DATA: "a field", Kind.PARAM: "a parameter", Kind.RESULT: "computed", Kind.CONSTANT: "a number"}


def report_moved(graph: Graph, sink: Sink) -> None:
    """SH296 for each operand that cannot be updated, and each reader of a state that is updated."""
    movers: dict[int, Op] = {}
    for op, at in _moves(graph):
        value = op.operands[at]
        if graph.values[value].kind is Kind.STATE and op.operands.count(value) == 1:
            movers.setdefault(value, op)
        else:
            _report_operand(graph, op, at, sink)
    told: set[int] = set()
    for op in graph.ops:
        for at, value in enumerate(op.operands):
            if value in movers and at not in REGISTRY[op.operator].updates and value not in told:
                told.add(value)
                _report_reader(graph, op, value, movers[value], sink)


def _moves(graph: Graph) -> Iterator[tuple[Op, int]]:
    """Operators with the places of the operands that they move."""
    return ((op, at) for op in graph.ops for at in REGISTRY[op.operator].updates)


def _report_operand(graph: Graph, op: Op, at: int, sink: Sink) -> None:
    value, param = graph.values[op.operands[at]], REGISTRY[op.operator].params[at].name
    what = _NOUNS.get(value.kind, "passed twice")
    sink.report(
        "SH296", f"`{op.operator}` updates its `{param}` in each step, and `{graph.shown(value.id)}` is {what}",
        op.span, "moved here", labels=[(value.span, "this is what would move")],
        help=f"declare a state for it alone: `state {param}: {value.type} = {'ones' if at > 1 else 'zeros'}()`",
    )  # fmt: skip


def _report_reader(graph: Graph, op: Op, value: int, mover: Op, sink: Sink) -> None:
    name = graph.shown(value)
    sink.report(
        "SH296", f"`{mover.operator}` updates state `{name}` in each step, and `{written(op.operator)}` reads it",
        op.span, "read here", labels=[(mover.span, "moved here"), (graph.values[value].span, "declared here")],
        help=f"compute what you need from the operands of `{mover.operator}`, or use a state that nothing updates",
    )  # fmt: skip
