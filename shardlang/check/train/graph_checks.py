"""A graph -> mistakes that only the whole graph shows.

- An index points past the end of what it is an index of: the classes of a loss, the rows of a
  table. Two bounds are known before the run: the bound that a data field declares, and the size of
  a dim whose places are counted.
- An operator moves a state that something else reads (`batch_norm` moves its statistics). A state
  changes as the step goes on. Another operator would read it before or after, which differs between
  one device, ranks, stages and what is computed again for backward: there is no one answer.
- A parameter is neither trained, which the loss's gradient does, nor frozen on purpose by a
  `detach`. Which optimizer trains each is optimizers.py's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.bounds import pointed
from shardlang.graph.graph import Graph, GraphValue, Kind, Op
from shardlang.ops.declaration import REGISTRY, written
from shardlang.sources.source import Span
from shardlang.types.dim import term_text


def check_indices(graph: Graph, sink: Sink) -> None:
    """No index may point past the end of what it is an index of."""
    for op in graph.ops:
        indexes = REGISTRY[op.operator].indexes
        if indexes is not None:
            _check(op, *pointed(op, indexes), graph, sink)


def _check(op: Op, numbers: int, into: int, dim: int, graph: Graph, sink: Sink) -> None:
    index, table = graph.values[numbers], graph.values[into]
    size, name = table.type.shape[dim], term_text(table.type.dims[dim])
    has, it = (f"{size} `{name}`", f"`{name}`") if name != str(size) else (f"only {size}", "that")
    places = _counted(index, graph)
    if index.bound is not None and index.bound > size:
        ignored = op.attrs.get("ignore_index")
        beside = "" if ignored is None else f"; {ignored}, which is ignored, may be in the data all the same"
        sink.report(
            "SH289", f"`{index.name}` goes up to {index.bound - 1}, and `{op.operator}` has {has}", op.span,
            "an index past the end", labels=[(index.span, f"below {index.bound}")],
            help=f"make {it} at least {index.bound}, or the bound at most {size}{beside}",
        )  # fmt: skip
    elif places is not None and places.type.shape[0] > size:
        many = places.type.shape[0]
        fact = f"there are {many} `{term_text(places.type.dims[0])}`, and `{table.path}` has {has}"
        sink.report("SH289", fact, op.span, "an index past the end", help=f"make {it} at least {many}")


def _counted(index: GraphValue, graph: Graph) -> GraphValue | None:
    """The value itself where it numbers its own dim."""
    op = graph.ops[graph.producers[index.id]] if index.id in graph.producers else None
    return index if op is not None and not op.operands and REGISTRY[op.operator].places is not None else None


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
        "SH296", f"`{mover.operator}` updates state `{name}` in each step, and `{written(op.called)}` reads it",
        op.span, "read here", labels=[(mover.span, "moved here"), (graph.values[value].span, "declared here")],
        help=f"compute what you need from the operands of `{mover.operator}`, or use a state that nothing updates",
    )  # fmt: skip


def check_loss(graph: Graph, trained: set[int], span: Span | None, sink: Sink) -> None:
    """The loss, at `span`, must depend on a parameter, and train each of `trained`."""
    assert graph.loss is not None
    if not graph.values[graph.loss].gradient:
        sink.report(
            "SH233", "the loss does not depend on any parameter, so nothing can be trained", span, "no gradient",
            help="compute it from `model(...)`; `detach`, comparisons, `argmax` and `freeze` stop gradients",
        )  # fmt: skip
        return
    unused = [graph.values[p] for p in graph.params if not graph.values[p].gradient and p in trained]
    used = [graph.values[p].path for p in graph.params if graph.values[p].gradient or p not in trained]
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


def _help(graph: Graph, param: GraphValue, what: str) -> str:
    """Help for a parameter that gets no gradient, by how far it is used."""
    readers = [op for op in graph.ops if param.id in op.operands]
    if not readers:
        return "call it, or leave it out" if what != "it" else "use it, or leave it out"
    if not any(op.section == "loss" for op in readers):
        there = f"use {what} there, through `detach` if its weights are to stay as they are"
        return f"{what} does not reach the loss: {there}"
    stop = _stop(graph, param.id)
    return f"no gradient passes `{stop.called}`: if its weights are to stay as they are, write `detach` around {what}"


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
