"""Plans made by hand, for what no program of the goldens shows; independent of checker and planner."""

from __future__ import annotations

from collections.abc import Mapping

import shardlang.ops.all_families  # noqa: F401  (fills the registry)
from shardlang.check.program import CheckedProgram, DataSource, OptimizerSetting, Training
from shardlang.graph.graph import Graph, GraphValue, Init, Kind, Op
from shardlang.ops.rule import Factor, Split, factor_rule
from shardlang.plan.plan import Conversion, Move, MoveKind, OperandUse, ParamPlan, Plan, PlannedOp, Step
from shardlang.sources.source import Source, Span
from shardlang.types.dim import Dim, TensorType, Term
from shardlang.types.layout import Layout
from shardlang.types.mesh import Axis, Mesh

TEXT = """\
dim batch = 16, input = 32, hidden = 16
model Net {
  param w: [input, hidden] = normal(0.01)
  forward(x: [batch, input]) -> [batch, hidden] {
    h = x @ w
    a = relu(h)
    return a
  }
}
train { loss = sum(model(x)) }
"""

BATCH, INPUT, HIDDEN = (Dim(name, size) for name, size in (("batch", 16), ("input", 32), ("hidden", 16)))
B, C, H = Factor("batch", 16), Factor("input", 32), Factor("hidden", 16)
MATMUL = factor_rule((B, C, H), (((0,), (1,)), ((1,), (2,))), (((0,), (2,)),), ((0,), (1,)))
RELU = factor_rule((B, H), (((0,), (1,)),), (((0,), (1,)),))
SUM = factor_rule((B, H), (((0,), (1,)),), ((),), ((0,),))


def type_of(*dims: Dim) -> TensorType:
    return TensorType("f32", tuple((d,) for d in dims))


def span_at(source: Source, text: str) -> Span:
    start = source.text.index(text)
    return Span(source, start, start + len(text))


def quickstart_graph(source: Source) -> Graph:
    """h = x @ w, a = relu(h), loss = sum(a)."""
    at = {text: span_at(source, text) for text in ("x @ w", "relu(h)", "sum(model(x))", "x: [batch, input]", "w: [")}
    values = (
        GraphValue(0, Kind.DATA, "train.x", "x", type_of(BATCH, INPUT), False, at["x: [batch, input]"]),
        GraphValue(1, Kind.PARAM, "w", "w", type_of(INPUT, HIDDEN), True, at["w: ["], init=Init("normal", (0.01,))),
        GraphValue(2, Kind.RESULT, "h", "h", type_of(BATCH, HIDDEN), True, at["x @ w"]),
        GraphValue(3, Kind.RESULT, "a", "a", type_of(BATCH, HIDDEN), True, at["relu(h)"]),
        GraphValue(4, Kind.RESULT, "train.loss", "loss", type_of(), True, at["sum(model(x))"]),
    )
    ops = (
        Op(0, "matmul", (0, 1), (2,), {}, MATMUL, at["x @ w"], "h", 0),
        Op(1, "relu", (2,), (3,), {}, RELU, at["relu(h)"], "a", 0),
        Op(2, "sum", (3,), (4,), {"dims": (0, 1)}, SUM, at["sum(model(x))"], "train.loss", 0),
    )
    return Graph(values, ops, (0,), (1,), (), 4, {}, {}, (), {}, BATCH, {2: 0, 3: 1, 4: 2})


def quickstart_plan(name: str = "quickstart.shard") -> Plan:
    """The product pending over b, reduce-scattered along hidden, as the design shows it."""
    source = Source(name, TEXT)
    graph = quickstart_graph(source)
    data = DataSource("random", {"batches": 4, "seed": 1}, ("x",), 16)
    sgd = OptimizerSetting("sgd", {"lr": 0.4, "momentum": 0.1}, (1,), ())
    program = CheckedProgram(source, graph, Training(data, None, (sgd,), False, None, None, 5, None), (), {}, {}, {})
    x, w = Layout((("a",), ("b",))), Layout((("b",), ()))
    pending, cut = Layout((("a",), ()), ("b",)), Layout((("a",), ("b",)))
    loss = Layout((), ("a", "b"))
    ops = (
        PlannedOp(0, (("a",), ("b",), ()), (OperandUse(0, -1, x), OperandUse(1, -1, w)), (pending,)),
        PlannedOp(1, (("a",), ("b",)), (OperandUse(2, 0, cut),), (cut,)),
        PlannedOp(2, (("a",), ("b",)), (OperandUse(3, -1, cut),), (loss,)),
    )
    moved = Conversion(0, 2, -1, Move(MoveKind.P_TO_S, ("b",), 1), cut, True)
    steps = (Step("op", 0), Step("conversion", 0), Step("op", 1), Step("op", 2))
    mesh = Mesh((Axis("a", 2), Axis("b", 4)))
    produced: Mapping[int, Layout] = {0: x, 1: w, 2: pending, 3: cut, 4: loss}
    params = {1: ParamPlan(1, w, ("a",))}
    return Plan(program, graph, "propagated", 8, (mesh,), produced, ops, (moved,), params, steps)


__all__ = ["Split", "Term", "quickstart_graph", "quickstart_plan"]
