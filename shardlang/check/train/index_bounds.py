"""Numbers that are indices, held against what they point into: the classes of a loss, the rows of a
table.

Two bounds are known before the run: the bound that a data field declares, and the size of a dim
whose places are counted."""

from __future__ import annotations

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.bounds import pointed
from shardlang.graph.graph import Graph, Op, Value
from shardlang.ops.declaration import REGISTRY
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


def _counted(index: Value, graph: Graph) -> Value | None:
    """The value itself where it numbers its own dim."""
    producer = graph.producers.get(index.id)
    return index if producer is not None and REGISTRY[graph.ops[producer].operator].counts else None
