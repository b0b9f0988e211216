"""Graphs made by the operators' own inference, without a checker: what a program of statements would give.

`Builder` numbers values; `program` adds strategies in Shard text; `planned` plans, or returns the codes reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import shardlang.ops.all_families  # noqa: F401
from shardlang.check.graph.unify import Unifier
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.planned import plan
from shardlang.graph.graph import Graph, GraphValue, Init, Kind, Op
from shardlang.ops.declaration import REGISTRY, CallSite
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.parse import parse
from shardlang.types.dim import Dim, TensorType, Term

SOURCE = Source("built.shard", "# a graph built by a test\n")
SPAN = Span(SOURCE, 0, 7)


@dataclass
class Builder:
    dims: dict[str, Dim] = field(default_factory=dict)
    values: list[GraphValue] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    unifier: Unifier = field(default_factory=Unifier)

    def dim(self, name: str, size: int) -> Dim:
        return self.dims.setdefault(name, Dim(name, size))

    def terms(self, text: str) -> tuple[Term, ...]:
        """`batch heads*width 1`: dims by name."""
        return tuple(() if w == "1" else tuple(self.dims[n] for n in w.split("*")) for w in text.split())

    def value(self, kind: Kind, path: str, type: TensorType, **more: Any) -> int:
        self.values.append(GraphValue(len(self.values), kind, path, path.rpartition(".")[2], type, False, SPAN, **more))
        return len(self.values) - 1

    def data(self, path: str, dims: str, dtype: str = "f32", bound: int | None = None) -> int:
        return self.value(Kind.DATA, path, TensorType(dtype, self.terms(dims)), bound=bound)

    def param(self, path: str, dims: str) -> int:
        init = Init("normal", (0.5,))
        return self.value(Kind.PARAM, path, TensorType("f32", self.terms(dims)), init=init)

    def state(self, path: str, dims: str, init: Init) -> int:
        return self.value(Kind.STATE, path, TensorType("f32", self.terms(dims)), init=init)

    def number(self, value: float | int) -> int:
        dtype = "i64" if isinstance(value, int) else "f32"
        return self.value(Kind.CONSTANT, f"constant:{len(self.values)}", TensorType(dtype, ()), constant=value)

    def op(self, operator: str, *operands: int | None, path: str, arrow: str | None = None, section: str = "loss",
           **static: Any) -> int:  # fmt: skip
        declared, sink = REGISTRY[operator], Sink()
        types = [None if v is None else self.values[v].type for v in operands]
        types += [None] * (sum(p.kind == "tensor" for p in declared.params) - len(types))
        given = {
            p.name: self._static(static.get(p.name, p.default), p.kind, p.name in static)
            for p in declared.params
            if p.kind not in ("tensor", "tensors")
        }
        site = CallSite(
            declared, tuple(types), given, None if arrow is None else self.terms(arrow), self.unifier, sink, SPAN,
            (SPAN,) * len(types), tuple(f"x{i}" for i in range(len(types))),  # type: ignore[arg-type]
        )  # fmt: skip
        found = declared.inferred(site)
        assert found is not None, [d.message for d in sink.found]
        result = self.value(Kind.RESULT, path, found.results[0])
        present = tuple(v for v in operands if v is not None)
        op = Op(len(self.ops), operator, present, (result,), found.attrs, found.rule, SPAN, path, 0, section)
        self.ops.append(op)
        return result

    def _static(self, value: Any, kind: str, given: bool) -> Any:
        if not given:
            return value
        match kind:
            case "dim" | "newdim":
                return self.terms(value)[0]
            case "dims":
                return self.terms(value)
            case "pair":
                return (value, value) if isinstance(value, int) else value
            case "slices":
                return tuple((self.terms(name)[0], *bounds) for name, bounds in value.items())
        return value

    def graph(self, loss: int, metrics: dict[str, int] | None = None) -> Graph:
        """Marks gradients: values between a parameter and the loss."""
        flowing = self._flowing(loss)
        values = tuple(replace(v, gradient=v.id in flowing) for v in self.values)
        kinds = {k: tuple(v.id for v in values if v.kind is k) for k in Kind}
        names = {v.path: (v.id,) for v in values}
        return Graph(
            values, tuple(self.ops), kinds[Kind.DATA], kinds[Kind.PARAM], kinds[Kind.STATE], loss, metrics or {}, names,
            tuple(names), {n: (d,) for n, d in self.dims.items()}, self.dims.get("batch"),
            {r: op.id for op in self.ops for r in op.results},
        )  # fmt: skip

    def _flowing(self, loss: int) -> set[int]:
        reached = {v.id for v in self.values if v.kind is Kind.PARAM}
        ops = [op for op in self.ops if op.section == "loss" and REGISTRY[op.operator].differentiable]
        for op in ops:
            if reached.intersection(op.operands):
                reached.update(op.results)
        needed = {loss}
        for op in reversed(ops):
            if needed.intersection(op.results):
                needed.update(v for v in op.operands if self.values[v].type.floating)
        return reached & needed


def program(graph: Graph, strategies: str) -> CheckedProgram:
    """A program of this graph; a mistake in the strategies' text fails the test."""
    sink = Sink()
    source = Source("built.shard", strategies)
    file = parse(source, sink)
    assert not sink.found, [d.message for d in sink.found]
    found = tuple(i for i in file.items if isinstance(i, ast.Strategy))
    return CheckedProgram(source, graph, None, found, {}, {}, {})


def planned(graph: Graph, strategies: str, ranks: int, name: str | None = None) -> Plan | list[str]:
    """The plan, or what was reported instead."""
    sink = Sink()
    result = plan(program(graph, strategies), name, ranks, sink)
    return result if result is not None and not sink.failed else [f"{d.code}: {d.message}" for d in sink.found]


def quickstart() -> Graph:
    """x @ w, relu, @ w2, mean squared error against label."""
    b = Builder()
    for name, size in (("batch", 16), ("input", 32), ("hidden", 16), ("output", 16)):
        b.dim(name, size)
    w, w2 = b.param("w", "input hidden"), b.param("w2", "hidden output")
    x, label = b.data("x", "batch input"), b.data("label", "batch output")
    h = b.op("matmul", x, w, path="h")
    y = b.op("matmul", b.op("relu", h, path="a"), w2, path="y")
    return b.graph(b.op("mse_loss", y, label, path="train.loss"))


def chain() -> Graph:
    """(x @ w) @ v, mean squared error against label."""
    b = Builder()
    for name, size in (("batch", 32), ("n", 64), ("k", 64), ("m", 64)):
        b.dim(name, size)
    w, v = b.param("w", "n k"), b.param("v", "k m")
    x, label = b.data("x", "batch n"), b.data("label", "batch m")
    z = b.op("matmul", b.op("matmul", x, w, path="y"), v, path="z")
    return b.graph(b.op("mse_loss", z, label, path="train.loss"))


def digits(batch: int = 64) -> Graph:
    """Two linear layers, cross-entropy, accuracy."""
    b = Builder()
    for name, size in (("batch", batch), ("pixels", 64), ("hidden", 128), ("classes", 10)):
        b.dim(name, size)
    image, label = b.data("image", "batch pixels"), b.data("label", "batch", "i64", 10)
    up, up_bias = b.param("up.weight", "hidden pixels"), b.param("up.bias", "hidden")
    down, down_bias = b.param("down.weight", "classes hidden"), b.param("down.bias", "classes")
    y = b.op("einsum", image, up, path="up.y:1", arrow="batch hidden")
    h = b.op("relu", b.op("add", y, up_bias, path="up.y"), path="h")
    z = b.op("einsum", h, down, path="down.y:1", arrow="batch classes")
    scores = b.op("add", z, down_bias, path="scores")
    loss = b.op("cross_entropy", scores, label, path="train.loss")
    right = b.op("argmax", scores, path="train.accuracy:1", over="classes", section="metric")
    same = b.op("eq", right, label, path="train.accuracy:2", section="metric")
    metric = b.op("mean", same, path="train.accuracy", section="metric")
    return b.graph(loss, {"accuracy": metric})
