"""A graph as text, one operator a line, for people and for tests. Layouts are the plan's to show."""

from __future__ import annotations

from collections.abc import Iterator

from shardlang.graph.graph import Graph, GraphValue, Kind, Op

_NOUNS = {Kind.DATA: "data", Kind.PARAM: "param", Kind.STATE: "state"}


def graph_text(graph: Graph) -> str:
    """Fields, parameters and states with their types, then the operators in order, then loss and metrics."""
    return "".join(f"{line}\n" for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    for value in graph.values:
        if value.kind in _NOUNS:
            yield f"{_NOUNS[value.kind]} {_typed(value)}{_start(value)}"
    for op in graph.ops:
        yield _op(op, graph)
    if graph.loss is not None:
        yield f"loss {graph.values[graph.loss].path}"
    for name, id in graph.metrics.items():
        yield f"metric {name} = {graph.values[id].path}"


def _typed(value: GraphValue) -> str:
    """`h: f32[batch, hidden]`; `*` after it where the loss's gradient flows to the value."""
    return f"{value.path}: {value.type}{' *' if value.gradient else ''}"


def _start(value: GraphValue) -> str:
    if value.init is not None:
        return f" = {value.init.kind}({', '.join(f'{a:g}' for a in value.init.args)})"
    further = "".join(f" or {number}" for number in value.ignored)
    return f" < {value.bound}{further}" if value.bound is not None else ""


def _op(op: Op, graph: Graph) -> str:
    results = ", ".join(_typed(graph.values[r]) for r in op.results)
    operands = [_operand(graph.values[v]) for v in op.operands]
    attrs = [f"{name} = {value}" for name, value in op.attrs.items()]
    return f"{results} = {op.operator}({', '.join([*operands, *attrs])}){'' if op.section == 'loss' else '  # metric'}"


def _operand(value: GraphValue) -> str:
    return f"{value.constant:g}" if value.kind is Kind.CONSTANT and value.constant is not None else value.path
