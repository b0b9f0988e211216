"""Casts and views -> whether a value itself crosses a border, or what is derived from it.

A border is that of a stage, or of a layer that is computed again. The fewest bytes cross it that
serve all readers behind it, and each value crosses once: a cast or view of what crosses is made
again behind the border. Numbers stay what they were, since it is made of the same elements.
Parameters and fields need not cross: they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field, replace

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.ops.declaration import REGISTRY


@dataclass
class Derived:
    """ops: those that may be made again. of: value -> what they make of it. made: all of that."""

    graph: Graph
    ops: Iterable[Op]
    of: dict[int, list[int]] = field(default_factory=dict)
    made: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for op in self.ops:
            if rearranges(self.graph, op):
                self.of.setdefault(op.operands[0], []).append(op.results[0])
                self.made.add(op.results[0])

    def __contains__(self, op: Op) -> bool:
        return op.results[0] in self.made

    def crosses(self, value: int, read: Callable[[int], bool]) -> bool:
        """Whether a value crosses itself. read: whether a value is read behind the border."""
        if self.graph.values[value].kind is not Kind.RESULT or read(value):
            return True
        sizes = [size for v in self.of.get(value, ()) if (size := self._bytes(v, read))]
        own, others = self.graph.values[value].type.bytes, sum(sizes)
        return own < others or (own == others and len(sizes) > 1)

    def _bytes(self, value: int, read: Callable[[int], bool]) -> int:
        """The fewest bytes that serve all readers of a value and of what is derived from it."""
        if self.crosses(value, read):
            return self.graph.values[value].type.bytes
        return sum(self._bytes(v, read) for v in self.of.get(value, ()))


def rearranges(graph: Graph, op: Op) -> bool:
    """Whether an operator gives all elements of its one operand, in another type or order. A
    leaf is only cast again where mixed precision needs that, and a state never: it may change."""
    if not REGISTRY[op.operator].moves or len(op.operands) != 1:
        return False
    before, after = (graph.values[v] for v in (op.operands[0], op.results[0]))
    made = before.kind is Kind.RESULT or (op.implied and before.kind is not Kind.STATE)
    return made and before.type.elements == after.type.elements


def of_reader(op: Op, reader: Op) -> Op:
    """A cast as if the operator that reads it had asked for it first."""
    return replace(op, within=reader.within, call=reader.call, span=reader.span, statement=reader.statement)
