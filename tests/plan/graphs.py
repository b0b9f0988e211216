"""Small graphs made by hand, and strategies parsed from text: what tests of the planner are about, without a
checker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, GraphValue, Kind, Op
from shardlang.ops.rule import Factor, FactorRule, Split, factor_rule
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.parse import parse
from shardlang.types.dim import Dim, TensorType

INSIDE = frozenset("!")


@dataclass
class GraphMaker:
    """`data`, `param`, then `op("matmul", "bi,io->bo", x, w, name="h")`: letters are factors, one a tensor dim."""

    text: str = ""
    dims: dict[str, Dim] = field(default_factory=dict)
    values: list[GraphValue] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    source: Source = field(default_factory=lambda: Source("made.shard", "# a graph made by hand\n"))

    def dim(self, name: str, size: int) -> Dim:
        return self.dims.setdefault(name, Dim(name, size))

    def _value(self, kind: Kind, name: str, dims: tuple[Dim, ...], gradient: bool, statement: int = 1) -> int:
        span = Span(self.source, 0, 7)
        type = TensorType("f32", tuple((d,) for d in dims))
        self.values.append(
            GraphValue(len(self.values), kind, name, name.rpartition(".")[2], type, gradient, span, statement)
        )
        return len(self.values) - 1

    def data(self, name: str, *dims: Dim) -> int:
        return self._value(Kind.DATA, name, dims, False)

    def param(self, name: str, *dims: Dim) -> int:
        return self._value(Kind.PARAM, name, dims, True)

    def op(self, operator: str, form: str, *operands: int, name: str, through: tuple[tuple[int, ...], ...] = (),
           inside: str = "", whole: str = "", gradient: bool = True, section: str = "loss",
           attrs: Mapping[str, object] | None = None) -> int:  # fmt: skip
        left, right = form.split("->")
        terms = left.split(",")
        letters = list(dict.fromkeys("".join(terms) + right))
        dims: dict[str, Dim] = {}
        for term, value in zip(terms, operands, strict=True):
            dims.update(zip(term, (t[0] for t in self.values[value].type.dims), strict=True))
        splits = {x: Split.INSIDE if x in inside else Split.WHOLE if x in whole else Split.FREE for x in letters}
        sums = {x: (1,) * (x in inside) for x in letters}
        factors = tuple(Factor(dims[x].name, dims[x].size or 1, splits[x], (sums[x], ())) for x in letters)

        def rows(term: str) -> tuple[tuple[int, ...], ...]:
            return tuple((letters.index(x),) for x in term)

        rule: FactorRule = factor_rule(factors, tuple(map(rows, terms)), (rows(right),), through)
        result = self._value(Kind.RESULT, name, tuple(dims[x] for x in right), gradient)
        span = Span(self.source, 0, 7)
        self.ops.append(Op(len(self.ops), operator, operands, (result,), attrs or {}, rule, span, name, 0, section))
        return result

    def graph(self, loss: int) -> Graph:
        kinds = {k: tuple(v.id for v in self.values if v.kind is k) for k in Kind}
        names = {v.path: (v.id,) for v in self.values}
        return Graph(
            tuple(self.values), tuple(self.ops), kinds[Kind.DATA], kinds[Kind.PARAM], kinds[Kind.STATE], loss, {},
            names, tuple(names), {n: (d,) for n, d in self.dims.items()}, self.dims.get("batch"),
            {r: op.id for op in self.ops for r in op.results},
        )  # fmt: skip


def program(graph: Graph, strategies: str) -> CheckedProgram:
    """A program of this graph with strategies in Shard text; a mistake in the text fails the test."""
    source = Source("made.shard", strategies)
    sink = Sink()
    file = parse(source, sink)
    assert not sink.found, [d.message for d in sink.found]
    found = tuple(i for i in file.items if isinstance(i, ast.Strategy))
    return CheckedProgram(source, graph, None, found, {}, {}, {})


MATMUL = ((0,), (1,))


def quickstart() -> Graph:
    """x @ w, relu, @ w2, mean squared error against label."""
    g = GraphMaker()
    batch, inputs, hidden, out = g.dim("batch", 16), g.dim("input", 32), g.dim("hidden", 16), g.dim("output", 16)
    w, w2 = g.param("w", inputs, hidden), g.param("w2", hidden, out)
    x, label = g.data("x", batch, inputs), g.data("label", batch, out)
    h = g.op("matmul", "bi,ih->bh", x, w, name="h", through=MATMUL)
    a = g.op("relu", "bh->bh", h, name="a")
    y = g.op("matmul", "bh,ho->bo", a, w2, name="y", through=MATMUL)
    loss = g.op("mse_loss", "bo,bo->", y, label, name="train.loss")
    return g.graph(loss)


def chain() -> Graph:
    """(x @ w) @ v, mean squared error against label."""
    g = GraphMaker()
    batch, n, k, m = g.dim("batch", 32), g.dim("n", 64), g.dim("k", 64), g.dim("m", 64)
    w, v = g.param("w", n, k), g.param("v", k, m)
    x, label = g.data("x", batch, n), g.data("label", batch, m)
    y = g.op("matmul", "bn,nk->bk", x, w, name="y", through=MATMUL)
    z = g.op("matmul", "bk,km->bm", y, v, name="z", through=MATMUL)
    loss = g.op("mse_loss", "bm,bm->", z, label, name="train.loss")
    return g.graph(loss)


def mlp(layers: int = 2) -> Graph:
    """Products with bias and relu between, cross entropy: hidden dims of their own per layer."""
    g = GraphMaker()
    batch, classes = g.dim("batch", 64), g.dim("classes", 10)
    x = g.data("image", batch, g.dim("pixels", 64))
    for i in range(layers):
        last = i == layers - 1
        out = classes if last else g.dim(f"hidden{i}" if i else "hidden", 128)
        inner = g.values[x].type.dims[1][0]
        w, b = g.param(f"fc{i}.weight", out, inner), g.param(f"fc{i}.bias", out)
        y = g.op("einsum", "bi,oi->bo", x, w, name=f"fc{i}.y:1", through=MATMUL)
        y = g.op("add", "bo,o->bo", y, b, name=f"fc{i}.y", through=((0, 1),))
        x = y if last else g.op("relu", "bo->bo", y, name=f"h{i}")
    label = g.data("label", batch)
    attrs = {"dim": 1, "ignore_index": None, "label_smoothing": 0.0}
    loss = g.op("cross_entropy", "bc,b->", x, label, name="train.loss", inside="c", attrs=attrs)
    return g.graph(loss)


def changed(graph: Graph, value: int, **fields: object) -> Graph:
    """The graph with one value's fields replaced."""
    values = list(graph.values)
    values[value] = replace(values[value], **fields)
    return replace(graph, values=tuple(values))
