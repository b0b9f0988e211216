"""Stages of operators -> the graph in which every value that another stage reads is handed on to
it.

One operator `transfer` a boundary, shared by all who read the value later; then the rest of
planning needs to know nothing of stages. Data is loaded where it is used, and what is computed from
data alone is computed there too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from shardlang.graph.graph import Graph, Op
from shardlang.ops.families.internal import TRANSFER, transfer_rule
from shardlang.plan.rewrite.insert import Rewriting
from shardlang.records import dataclass


def with_transfers(graph: Graph, stages: Sequence[int], copied: set[int]) -> tuple[Graph, tuple[int, ...]]:
    """The graph with transfers, and its operators' stages. copied: operators that each stage
    computes for itself.

    Metrics end in the stage of the loss."""
    work = _Transferring(graph, stages, copied, Rewriting(graph))
    work.find_trained()
    for op in graph.ops:
        if op.id not in copied:
            work.keep(op)
    last = loss_stage(graph, stages)
    metrics = {name: work.value(v, last) for name, v in graph.metrics.items()}
    loss = None if graph.loss is None else work.value(graph.loss, last)
    return replace(work.made.result(), metrics=metrics, loss=loss), tuple(work.of_new)


def loss_stage(graph: Graph, stages: Sequence[int]) -> int:
    """The stage in which the loss and the metrics are complete; by default the last."""
    producer = graph.producers.get(graph.loss) if graph.loss is not None else None
    return stages[producer] if producer is not None else max(stages, default=0)


@dataclass
class _Transferring:
    """`there`: (value, stage) -> its copy there. trained: (value, stage) that the loss reads."""

    graph: Graph
    stages: Sequence[int]
    copied: set[int]
    made: Rewriting
    of_new: list[int] = field(default_factory=list)
    there: dict[tuple[int, int], int] = field(default_factory=dict)
    trained: dict[int, int] = field(default_factory=dict)

    def find_trained(self) -> None:
        """Value -> the last stage in which the loss needs it."""
        for op in self.graph.ops:
            for value in op.operands if op.section == "loss" else ():
                self.trained[value] = max(self.trained.get(value, -1), self.stages[op.id])
        for op in reversed(self.graph.ops):
            for value in op.operands if op.id in self.copied else ():
                self.trained[value] = max(self.trained.get(value, -1), *(self.trained.get(r, -1) for r in op.results))

    def keep(self, op: Op) -> None:
        stage = self.stages[op.id]
        operands = tuple([self.value(v, stage) for v in op.operands])
        self.made.keep(op, operands)
        self.of_new.append(stage)

    def value(self, value: int, stage: int) -> int:
        """The copy of a value in a stage."""
        producer = self.graph.producers.get(value)
        if producer is None or (value, stage) in self.there:
            return self.there.get((value, stage), value)
        if producer in self.copied:
            self._copy(self.graph.ops[producer], stage)
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

    def _copy(self, op: Op, stage: int) -> None:
        """An operator in the stage that reads it: the first keeps its values, others copy."""
        trained = any(self.trained.get(v, -1) >= stage for v in op.results)
        op = op if trained else replace(op, section="metric")
        operands = tuple([self.value(v, stage) for v in op.operands])
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
