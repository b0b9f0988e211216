"""A checked program -> all of it that a strategy without ranks depends on, as a value that is equal
for two checks of the same. Dims and places are numbered in the order in which they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from shardlang.check.program import CheckedProgram
from shardlang.check.values import DimValue
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span
from shardlang.types.dim import Dim, TensorType, Term


def outline(program: CheckedProgram) -> object:
    graph, of = program.graph, _Numbers()
    values = [
        (
            v.kind, v.path, v.name, of.type(v.type), v.gradient, of.place(v.span), v.statement, v.init, v.constant,
            v.bound, v.ignored,
        )
        for v in graph.values
    ]  # fmt: skip
    ops = [
        (
            op.id, op.operator, op.operands, op.results, of.value(op.attrs), of.rule(op.rule), of.place(op.span),
            op.path, op.call, op.section, op.within, of.place(op.statement), op.implied,
        )
        for op in graph.ops
    ]  # fmt: skip
    calls = [
        (call.path, call.model, call.within, call.arguments, of.place(call.span), of.place(call.statement))
        for call in graph.calls
    ]
    dims = [(name, of.term(term)) for name, term in graph.dims.items()]
    besides = (
        graph.data, graph.params, graph.states, graph.loss, graph.metrics, graph.addresses, graph.declared,
        graph.producers, of.term((graph.batch,)) if graph.batch is not None else None,
    )  # fmt: skip
    return values, ops, calls, dims, besides, of.rules, of.told, program.statics, program.axis_overrides


@dataclass
class _Numbers:
    """The numbers of dims, places, and by their identity of types and rules. told: what is said of
    each dim; rules: each."""

    dims: dict[Dim, int] = field(default_factory=dict)
    places: dict[Span | None, int] = field(default_factory=dict)
    types: dict[int, object] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    rules: list[Any] = field(default_factory=list)
    told: list[object] = field(default_factory=list)

    def place(self, span: Span | None) -> int:
        return self.places.setdefault(span, len(self.places))

    def rule(self, rule: Any) -> int:
        if id(rule) not in self.numbers:
            self.numbers[id(rule)] = len(self.rules)
            self.rules.append(rule)
        return self.numbers[id(rule)]

    def term(self, term: Term) -> tuple[int, ...]:
        return tuple([self._dim(dim) for dim in term])

    def _dim(self, dim: Dim) -> int:
        if dim not in self.dims:
            self.dims[dim] = len(self.dims)
            self.told.append((dim.name, dim.size, dim.span is None, dim.literal, dim.home))
        return self.dims[dim]

    def type(self, type: TensorType) -> object:
        if id(type) not in self.types:
            self.types[id(type)] = type.dtype, tuple([self.term(term) for term in type.dims])
        return self.types[id(type)]

    def value(self, value: Any) -> object:
        """An argument; one that is none of these is equal to what it says it is."""
        if isinstance(value, Mapping):
            return [(name, self.value(each)) for name, each in value.items()] if value else ()
        if isinstance(value, tuple):
            return tuple([self.value(each) for each in value])
        if isinstance(value, DimValue):
            return "dim", self.term(value.term)
        return ("dim", self._dim(value)) if isinstance(value, Dim) else value
