"""Stages of operators -> the graph in which every value that another stage reads is handed on to
it.

One operator `transfer` a boundary, shared by all who read the value later; then the rest of
planning needs to know nothing of stages. Data is loaded where it is used, and what is computed from
data alone is computed there too. A value with its casts and views is handed on in the fewest bytes
(see derived.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Op
from shardlang.ops.families.internal import TRANSFER, transfer_rule
from shardlang.plan.rewrite.derived import Derived, of_reader
from shardlang.plan.rewrite.insert import Rewriting


def with_transfers(graph: Graph, stages: Sequence[int], copied: set[int]) -> tuple[Graph, tuple[int, ...]]:
    """The graph with transfers, and its operators' stages. copied: operators that each stage
    computes for itself.

    Metrics end in the stage of the loss."""
    work = _Transferring(graph, stages, copied, Rewriting(graph), _derived(graph, stages, copied))
    last = loss_stage(graph, stages)
    work.find_read(last)
    work.find_trained()
    for op in graph.ops:
        if not work.copies(op, stages[op.id]):
            work.keep(op)
    metrics = {name: work.value(v, last) for name, v in graph.metrics.items()}
    loss = None if graph.loss is None else work.value(graph.loss, last)
    return replace(work.made.result(), metrics=metrics, loss=loss), tuple(work.of_new)


def loss_stage(graph: Graph, stages: Sequence[int]) -> int:
    """The stage in which the loss and the metrics are complete; by default the last."""
    producer = graph.producers.get(graph.loss) if graph.loss is not None else None
    return stages[producer] if producer is not None else max(stages, default=0)


def _derived(graph: Graph, stages: Sequence[int], copied: set[int]) -> Derived:
    """The casts and views that later stages may make again: those beside their operand."""
    own = (op for op in graph.ops if op.operands and op.id not in copied)
    return Derived(graph, [op for op in own if stages[graph.producers.get(op.operands[0], op.id)] == stages[op.id]])


@dataclass
class _Transferring:
    """copied: operators that run where they are read. `there`: (value, stage) -> its copy there.
    read: value -> the last stage that reads it, itself. again: (operator, stage) -> whether that
    makes its cast or view again. trained: (value, stage) that the loss reads."""

    graph: Graph
    stages: Sequence[int]
    copied: set[int]
    made: Rewriting
    derived: Derived
    read: dict[int, int] = field(default_factory=dict)
    of_new: list[int] = field(default_factory=list)
    there: dict[tuple[int, int], int] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)
    again: dict[tuple[int, int], bool] = field(default_factory=dict)

    def find_read(self, last: int) -> None:
        """Value -> the last stage that reads it; the loss and metrics are returned by `last`."""
        for op in self.graph.ops:
            for value in () if op in self.derived else op.operands:
                self.read[value] = max(self.read.get(value, -1), self.stages[op.id])
        for shown in (self.graph.loss, *self.graph.metrics.values()):
            if shown is not None:
                self.read[shown] = last

    def copies(self, op: Op, stage: int) -> bool:
        """Whether an operator runs in a stage because its results are read there."""
        return op.id in self.copied or (op in self.derived and self._again(op, max(stage, self.stages[op.id] + 1)))

    def _again(self, op: Op, stage: int) -> bool:
        """Whether a later stage makes a cast or view again from what it is sent."""
        if (op.id, stage) not in self.again:
            value = op.operands[0]
            producer = self.graph.producers.get(value)
            maker = self.graph.ops[producer] if producer is not None else None
            above = maker is not None and maker in self.derived and self._again(maker, stage)
            found = above or self.derived.crosses(value, lambda v: self.read.get(v, -1) >= stage)
            self.again[op.id, stage] = found
        return self.again[op.id, stage]

    def find_trained(self) -> None:
        """Value -> the last stage in which the loss needs it."""
        for op in self.graph.ops:
            for value in op.operands if op.section == "loss" else ():
                self.trained[value] = max(self.trained.get(value, -1), self.stages[op.id])
        for op in reversed(self.graph.ops):
            for value in op.operands if self.copies(op, 0) else ():
                self.trained[value] = max(self.trained.get(value, -1), *(self.trained.get(r, -1) for r in op.results))

    def keep(self, op: Op) -> None:
        stage = self.stages[op.id]
        operands = tuple([self.value(v, stage, op) for v in op.operands])
        self.made.keep(op, operands)
        self.of_new.append(stage)

    def value(self, value: int, stage: int, reader: Op | None = None) -> int:
        """The copy of a value in a stage."""
        producer = self.graph.producers.get(value)
        if producer is None or (value, stage) in self.there:
            return self.there.get((value, stage), value)
        op = self.graph.ops[producer]
        if self.copies(op, stage):
            self._copy(op, stage, reader)
            return self.there[value, stage]
        if self.stages[producer] >= stage:
            return value
        found = self.there[value, stage] = self._transfer(producer, value, self.value(value, stage - 1), stage)
        self.of_new.append(stage)
        return found

    def _transfer(self, producer: int, value: int, before: int, stage: int) -> int:
        op, whole = self.graph.ops[producer], self.graph.values[value]
        trained = self.trained.get(value, -1) >= stage
        like = replace(op, section="loss" if trained else "metric")
        rule, path = transfer_rule(whole.type), f"{whole.path}@{stage}"
        return self.made.add(
            like, TRANSFER, (before,), whole.type, rule, path, name=whole.name, gradient=whole.gradient and trained
        )

    def _copy(self, op: Op, stage: int, reader: Op | None) -> None:
        """An operator in the stage that reads it: the first keeps its values, others copy."""
        trained = any(self.trained.get(v, -1) >= stage for v in op.results)
        if reader is not None and op in self.derived:
            op = of_reader(op, reader)
        op = op if trained else replace(op, section="metric")
        operands = tuple([self.value(v, stage, reader) for v in op.operands])
        if not any((v, s) in self.there for v in op.results for s in range(max(self.stages, default=0) + 1)):
            self.made.keep(op, operands)
            self.there.update({(v, stage): v for v in op.results})
        else:
            for value in op.results:
                whole = self.graph.values[value]
                self.there[value, stage] = self.made.add(
                    op, op.operator, operands, whole.type, op.rule, f"{whole.path}@{stage}", name=whole.name,
                    attrs=op.attrs, key=op.path, gradient=whole.gradient and self.trained.get(value, -1) >= stage,
                )  # fmt: skip
        self.of_new.append(stage)
