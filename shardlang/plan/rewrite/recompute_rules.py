"""`recompute` rules -> groups of operators whose results are computed again in backward, one for
each call of a layer.

Only what a group's results are made of is kept. memory.py counts what that saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardlang.check.selectors import matcher
from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, Op
from shardlang.ops.families.internal import TRANSFER
from shardlang.syntax import ast

Matchers = Sequence[Callable[[str], str]]


def recomputed(
    graph: Graph, selectors: Sequence[ast.Selector], op_stage: Sequence[int] | None, sink: Sink
) -> tuple[tuple[int, ...], ...]:
    """The groups, each ascending, in the order of their first operators. A call is cut where its
    stage ends.

    Where selectors cover each other (`encoder`, `encoder.blocks[*]`), the finest counts. Operators
    without gradient, the loss and metrics stay as they are."""
    matchers = [matcher(s) for s in selectors]
    for selector, match in zip(selectors, matchers, strict=True):
        if not any(match(op.path.partition(":")[0]) for op in graph.ops):
            sink.report(
                "SH308", f"`{selector.span.text}` covers nothing that is computed", selector.span,
                help="name layers, `blocks[*]`, or values of a forward",
            )  # fmt: skip
    groups: list[list[int]] = []
    latest: dict[tuple[str, int], list[int]] = {}
    begins: dict[tuple[str, int], tuple[str, int]] = {}
    for op in graph.ops:
        own = _layer(op, matchers)
        if not own or op.operator == TRANSFER or op.section != "loss" or graph.loss in op.results:
            continue
        key = own, op_stage[op.id] if op_stage is not None else 0
        # Each call of a layer begins with the same operator.
        again = key in begins and begins[key][0] == op.path and begins[key][1] != op.call
        if key not in latest or again:
            latest[key] = []
            groups.append(latest[key])
            begins[key] = op.path, op.call
        latest[key].append(op.id)
    return tuple(tuple(g) for g in groups if any(graph.values[v].gradient for at in g for v in graph.ops[at].results))


def _layer(op: Op, matchers: Matchers) -> str:
    """The innermost layer, of those that rules name, around an operator; "" if there is none."""
    path = op.path.partition(":")[0]
    return max((match(path) for match in matchers), key=len, default="")
