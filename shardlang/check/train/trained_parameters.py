"""Which parameters a run trains: those that the loss's gradient reaches. Others are frozen by a
`detach` on their way.

Reports a loss that trains nothing, and parameters that are neither trained nor frozen on purpose.
Which optimizer trains each is optimizers.py's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, Op, Value
from shardlang.ops.declaration import REGISTRY
from shardlang.source import Span


def check_loss(graph: Graph, declared: set[int], span: Span | None, sink: Sink) -> None:
    """The loss, at `span`, must depend on a parameter, and train each `declared` unless frozen."""
    assert graph.loss is not None
    if not graph.values[graph.loss].gradient:
        sink.report(
            "SH233", "the loss does not depend on any parameter, so nothing can be trained", span, "no gradient",
            help="compute it from `model(...)`; `detach`, comparisons and `argmax` stop gradients",
        )  # fmt: skip
        return
    frozen = detached(graph)
    unused = [graph.values[p] for p in graph.params if not graph.values[p].gradient and p in declared - frozen]
    used = [graph.values[p].path for p in graph.params if graph.values[p].gradient or p in frozen]
    told: set[str] = set()
    for value in unused:
        layer = _unused_layer(value.path, used)
        stem = re.sub(r"\[\d+\]", "", layer or value.path)
        if stem in told:
            continue
        told.add(stem)
        sink.report(
            "SH233", f"the loss does not depend on {f'layer `{layer}`' if layer else f'parameter `{value.path}`'}",
            value.span, "never trained", labels=[(span, "the loss")] if span else [],
            help=_help(graph, value, "it" if layer is None else "what it gives"),
        )  # fmt: skip


def detached(graph: Graph) -> set[int]:
    """The values from which some way to the loss passes a `detach`."""
    found: set[int] = set()
    for op in reversed(graph.ops):
        if op.section == "loss" and (REGISTRY[op.operator].freezes or found.intersection(op.results)):
            found.update(op.operands)
    return found


def _help(graph: Graph, param: Value, what: str) -> str:
    """Help for a parameter that gets no gradient, by how far it is used."""
    readers = [op for op in graph.ops if param.id in op.operands]
    if not readers:
        return "call it, or leave it out" if what != "it" else "use it, or leave it out"
    if not any(op.section == "loss" for op in readers):
        there = f"use {what} there, through `detach` if its weights are to stay as they are"
        return f"{what} does not reach the loss: {there}"
    stop = _stop(graph, param.id)
    return f"no gradient passes `{stop.operator}`: if its weights are to stay as they are, write `detach` around {what}"


def _stop(graph: Graph, param: int) -> Op:
    """The first operator on the way to the loss that a parameter's gradient does not pass."""
    reached = {param}
    for op in graph.ops:
        if op.section == "loss" and reached.intersection(op.operands):
            floating = all(graph.values[r].type.floating for r in op.results)
            if not (REGISTRY[op.operator].differentiable and floating):
                return op
            reached.update(op.results)
    raise AssertionError(f"a gradient reaches {graph.values[param].path}")


def _unused_layer(path: str, used: Sequence[str]) -> str | None:
    """The outermost layer around a parameter of which nothing is used; None where there is none."""
    parts = path.split(".")
    layers = (".".join(parts[:n]) for n in range(1, len(parts)))
    return next((la for la in layers if not any(u.startswith(f"{la}.") for u in used)), None)
