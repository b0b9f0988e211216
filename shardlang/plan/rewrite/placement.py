"""`place on host | device` -> which values are in host memory, and the graph in which every
operator finds its operands where it runs: copies between the two are operators of their own, so the
rest of planning needs to know nothing of them.

An operator runs where a rule places its result. Without a rule a lookup runs where its table lies,
since that sends rows and not the table; everything else runs on the device. A field of a batch is
kept on the host if something there reads it; a state is where it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.families.internal import TO_DEVICE, TO_HOST, TRANSFER, transfer_rule
from shardlang.plan.rewrite.insert import Rewriting

HOST, DEVICE = "host", "device"
_COPY = {HOST: TO_HOST, DEVICE: TO_DEVICE}


def with_copies(graph: Graph, wanted: Mapping[int, str]) -> tuple[Graph, dict[int, str]]:
    """The graph with copies between memories, and the host's values. wanted: value -> memory."""
    if HOST not in wanted.values():
        return graph, {}
    work = _Hosting(graph, wanted, Rewriting(graph))
    work.settle()
    for op in graph.ops:
        work.keep(op)
    metrics = {name: work.value(v, DEVICE) for name, v in graph.metrics.items()}
    loss = None if graph.loss is None else work.value(graph.loss, DEVICE)
    found = replace(work.made.result(), metrics=metrics, loss=loss)
    return found, {value: HOST for value, place in work.of.items() if place == HOST}


@dataclass
class _Hosting:
    """of: value -> its place. runs: operator (of the given graph) -> where it runs. copies: (value,
    place) -> its copy. trained: (value, place) that the loss reads there."""

    graph: Graph
    wanted: Mapping[int, str]
    made: Rewriting
    of: dict[int, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    copies: dict[tuple[int, str], int] = field(default_factory=dict)
    trained: set[tuple[int, str]] = field(default_factory=set)

    def settle(self) -> None:
        """Where everything that the program names is."""
        values = self.graph.values
        leaves = (*self.graph.params, *self.graph.states, *self.graph.data)
        self.of = {value: self.wanted.get(value, DEVICE) for value in leaves}
        for op in self.graph.ops:
            place = self._place(op)
            self.runs.append(place)
            self.of.update(dict.fromkeys(op.results, place))
            for value in op.operands:
                if op.section == "loss":
                    self.trained.add((value, place))
                if place == HOST and values[value].kind in (Kind.DATA, Kind.STATE):
                    self.of[value] = HOST
        if self.graph.loss is not None:
            self.trained.add((self.graph.loss, DEVICE))

    def _place(self, op: Op) -> str:
        if all(self.graph.values[v].kind is Kind.CONSTANT for v in op.operands):
            return DEVICE  # nothing that could be elsewhere
        rule = next((self.wanted[v] for v in op.results if v in self.wanted), None)
        if rule is not None:
            return rule
        table = REGISTRY[op.operator].table
        return self.of.get(op.operands[table], DEVICE) if table is not None else DEVICE

    def keep(self, op: Op) -> None:
        place = self.runs[op.id]
        self.made.keep(op, tuple([self.value(v, place) for v in op.operands]))

    def value(self, value: int, place: str) -> int:
        """The copy of a value in a memory."""
        it = self.graph.values[value]
        if it.kind is Kind.CONSTANT or self.of[value] == place:
            return value
        if (value, place) not in self.copies:
            producer, rule = self.graph.producers.get(value), transfer_rule(it.type)
            # A leaf is copied where it is declared: a metric may read it with no operator.
            leaf = Op(-1, it.kind.value, (), results=(value,), attrs={}, rule=rule, span=it.span, path=it.path, call=0)
            like = leaf if producer is None else self.graph.ops[producer]
            trained = (value, place) in self.trained
            copy = self.made.add(
                replace(like, section="loss" if trained else "metric"), _COPY[place], (value,), it.type,
                rule, f"{it.path}@{place}", name=it.name, gradient=it.gradient and trained,
            )  # fmt: skip
            self.copies[value, place] = copy
            self.of[copy] = place
        return self.copies[value, place]


def staged(graph: Graph, memory_of: Mapping[int, str], sink: Sink) -> dict[int, str]:
    """The values on the host, with those that stages have added; a value on the host that another
    stage reads is reported."""
    found = dict(memory_of)
    for op in graph.ops if memory_of else ():
        here = any(v in found for v in op.operands)
        if op.operator == TRANSFER and here:
            value = graph.values[op.operands[0]]
            sink.report(
                "SH400", f"`{value.name}` is placed on the host and read in another stage, which is not there yet",
                value.span, help="place it on the device, or keep both in one stage",
            )  # fmt: skip
            return found
        if op.operator == TO_HOST or (here and op.operator != TO_DEVICE):
            found.update(dict.fromkeys(op.results, HOST))
    return found
