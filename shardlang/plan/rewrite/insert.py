"""A graph with operators added: what microbatches and stages need that the user did not write.

Values keep their ids, new ones come after them; operators are numbered anew, in order. Which
operators are added is said by those who ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from operator import is_
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, GraphValue, Kind, Op
from shardlang.ops.families.losses import KEPT_COUNT
from shardlang.ops.rule import FactorRule, factor_rule
from shardlang.types.dim import TensorType


@dataclass
class Rewriting:
    """A graph that grows: `ops` in their new order."""

    graph: Graph
    values: list[GraphValue] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = list(self.graph.values)

    def keep(self, op: Op, operands: tuple[int, ...] | None = None, rule: FactorRule | None = None) -> None:
        """An operator of the given graph, perhaps with other operands."""
        id, operands, rule = len(self.ops), op.operands if operands is None else operands, rule or op.rule
        if (id, operands, rule) != (op.id, op.operands, op.rule):
            op = Op(
                id, op.operator, operands, results=op.results, attrs=op.attrs, rule=rule, span=op.span, path=op.path,
                call=op.call, section=op.section,
                within=op.within, statement=op.statement, implied=op.implied,
            )  # fmt: skip
        self.ops.append(op)

    def add(self, like: Op, operator: str, operands: tuple[int, ...], type: TensorType, rule: FactorRule, path: str,
            **more: Any) -> int:  # fmt: skip
        """A new operator of one result, at the place of `like`; the result. `more`: attrs, name,
        gradient; `key`: the path of its random numbers, those of `like`, where it is a copy of
        that."""
        kept = self.values[like.results[0]]
        gradient = bool(more.pop("gradient", False))
        name = str(more.pop("name", kept.name))
        value = GraphValue(
            len(self.values), Kind.RESULT, path, name=name, type=type, gradient=gradient, span=like.span,
            statement=kept.statement,
        )  # fmt: skip
        self.values.append(value)
        attrs: Mapping[str, Any] = more.pop("attrs", {})
        key = str(more.pop("key", path))
        self.ops.append(
            Op(
                len(self.ops),
                operator,
                operands,
                results=(value.id,),
                attrs=attrs,
                rule=rule,
                span=like.span,
                path=key,
                call=like.call,
                section=like.section,
                within=like.within,
                statement=like.statement,
                implied=like.implied and operator == like.operator,
            )
        )
        return value.id

    def result(self) -> Graph:
        if len(self.ops) == len(self.graph.ops) and all(map(is_, self.ops, self.graph.ops)):
            return self.graph
        producers = {v: op.id for op in self.ops for v in op.results}
        return replace(self.graph, values=tuple(self.values), ops=tuple(self.ops), producers=producers)


def with_counts(graph: Graph) -> Graph:
    """Each loss that leaves labels out with the count of the others as an operand: it is known of
    the whole batch before the first microbatch, where the loss itself sees a part."""
    work = Rewriting(graph)
    for op in graph.ops:
        ignored = op.attrs.get("ignore_index")
        if ignored is None or len(op.operands) != 2:
            work.keep(op)
            continue
        label = op.rule.operands[1]
        count = work.add(
            op, KEPT_COUNT, (op.operands[1],), TensorType("i64", ()), _counting(op.rule),
            f"{op.path}:count", name=f"{work.values[op.results[0]].name}_count", attrs={"ignore_index": ignored},
        )  # fmt: skip
        rule = factor_rule(op.rule.factors, (op.rule.operands[0], label, ()), op.rule.results, op.rule.through)
        work.keep(op, (*op.operands, count), rule)
    return work.result()


def _counting(loss: FactorRule) -> FactorRule:
    """The rule of a count of labels: a sum over all of their dims."""
    numbers = {f: i for i, f in enumerate(dict.fromkeys(f for dim in loss.operands[1] for f in dim))}
    label = tuple(tuple(numbers[f] for f in dim) for dim in loss.operands[1])
    return factor_rule(tuple(loss.factors[f] for f in numbers), (label,), ((),))
