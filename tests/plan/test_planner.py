"""Plans of the small programs that the language is explained with: layouts, collectives, storage, steps."""

from __future__ import annotations

from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.planned import plan
from shardlang.graph.graph import Graph
from shardlang.plan.plan import MoveKind, Plan
from shardlang.types.layout import layout_text
from tests.plan.graphs import MATMUL, GraphMaker, chain, mlp, program, quickstart


def planned(graph: Graph, rules: str, ranks: int) -> Plan:
    sink = Sink()
    text = "strategy s {\n  " + rules.replace("; ", "\n  ") + "\n}\n"
    found = plan(program(graph, text), None, ranks, sink)
    assert found is not None, [d.message for d in sink.found]
    return found


def results(found: Plan) -> list[str]:
    return [
        layout_text(found.graph.values[v].type, layout, found.meshes[layout.mesh])
        for op in found.ops
        for v, layout in zip(found.graph.ops[op.op].results, op.results, strict=True)
    ]


def moves(found: Plan) -> list[tuple[str, MoveKind, tuple[str, ...]]]:
    return [(found.graph.values[c.value].path, c.move.kind, c.move.axes) for c in found.conversions]


def params(found: Plan) -> dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]]:
    return {found.graph.values[p.value].path: (p.stored.dims, p.reduce_axes) for p in found.params.values()}


def test_quickstart() -> None:
    found = planned(quickstart(), "at h: shard ((2, 4), (4, 1))", 8)
    assert results(found) == ["[batch@a, hidden] +b", "[batch@a, hidden@b]", "[batch@a, output] +b", "[] +(a, b)"]
    assert moves(found) == [("h", MoveKind.P_TO_S, ("b",)), ("y", MoveKind.P_TO_S, ("b",))]
    assert params(found) == {"w": ((("b",), ()), ("a",)), "w2": ((("b",), ()), ("a",))}
    assert [op.chosen for op in found.ops] == ["shard", "propagated", "propagated", "propagated"]


def test_rows_then_columns_by_count_and_by_name() -> None:
    by_count = planned(chain(), "at y: shard ((4, 1), (1, 1)); at z: shard ((1, 1), (1, 4))", 4)
    by_name = planned(chain(), "mesh a = 4; at y: [batch@a, k]; at z: [batch, m@a]", 4)
    assert moves(by_count) == moves(by_name) == [("y", MoveKind.S_TO_R, ("a",))]
    assert by_count.produced == by_name.produced
    assert params(by_name) == {"w": (((), ()), ("a",)), "v": (((), ("a",)), ())}


def test_data_parallel_needs_no_conversion() -> None:
    found = planned(mlp(), "mesh dp = auto; split batch over dp", 4)
    assert found.conversions == ()
    assert {reduce for _, reduce in params(found).values()} == {("dp",)}
    assert results(found)[-1] == "[] +dp"


def test_a_bias_joins_a_pending_sum_without_communication() -> None:
    found = planned(mlp(), "mesh mp = auto; split hidden over mp", 4)
    assert ("fc1.bias", MoveKind.I_TO_P, ("mp",)) in moves(found)
    assert params(found)["fc1.bias"] == (((),), ())
    assert params(found)["fc1.weight"] == (((), ("mp",)), ())


def test_zero_is_kept_with_its_axes() -> None:
    found = planned(mlp(), "mesh dp = auto; split batch over dp; zero 3 over dp", 4)
    assert {(p.zero, p.zero_axes) for p in found.params.values()} == {(3, ("dp",))}
    both = planned(mlp(), "mesh dp = 2, mp = 2; split hidden over mp; split batch over dp; zero 1 over (dp, mp)", 4)
    axes = {both.graph.values[p.value].path: p.zero_axes for p in both.params.values()}
    assert axes["fc0.weight"] == ("dp",)


def test_an_output_layout_is_made_at_once() -> None:
    found = planned(quickstart(), "at h: shard ((2, 4), (4, 1)) -> ((8, 1))", 8)
    assert layout_text(found.graph.values[4].type, found.conversions[0].to, found.meshes[0]) == "[batch@(a, b), hidden]"


def test_unrelated_meshes_are_bridged() -> None:
    g = GraphMaker()
    batch, d, e = g.dim("batch", 36), g.dim("d", 36), g.dim("e", 36)
    h = g.op("matmul", "bd,de->be", g.data("x", batch, d), g.param("w", d, e), name="h", through=MATMUL)
    z = g.op("matmul", "be,ed->bd", h, g.param("v", e, d), name="z", through=MATMUL)
    graph = g.graph(g.op("sum", "bd->", z, name="train.loss", through=((0,),)))
    found = planned(graph, "at h: shard ((2, 3), (3, 1)); at z: shard ((3, 2), (2, 1))", 6)
    assert MoveKind.VIEW in {kind for _, kind, _ in moves(found)}


def test_three_uses_of_one_value_share_their_conversion() -> None:
    g = GraphMaker()
    batch, d, heads = g.dim("batch", 8), g.dim("d", 16), g.dim("heads", 16)
    x = g.op("matmul", "bd,de->be", g.data("x", batch, d), g.param("w", d, g.dim("e", 16)), name="x1", through=MATMUL)
    e = g.dim("e", 16)
    qkv = [g.op("matmul", "be,eh->bh", x, g.param(n, e, heads), name=f"{n}v", through=MATMUL) for n in "qkv"]
    s = g.op("mul", "bh,bh->bh", qkv[0], qkv[1], name="s", through=MATMUL)
    s = g.op("mul", "bh,bh->bh", s, qkv[2], name="t", through=MATMUL)
    graph = g.graph(g.op("mean", "bh->", s, name="train.loss", through=((0,),)))
    found = planned(graph, "mesh mp = 4; split heads over mp; at x1: [batch, e]", 4)
    assert [m for m in moves(found) if m[0] == "x1"] == [("x1", MoveKind.I_TO_R, ("mp",))]


def unsplit_chain(batch_size: int) -> Graph:
    """x @ w and tanh, both unsplit, into a product that is split along heads."""
    g = GraphMaker()
    batch, d, heads, out = g.dim("batch", batch_size), g.dim("d", 16), g.dim("e", 64), g.dim("heads", 64)
    y = g.op("matmul", "bd,dh->bh", g.data("x", batch, d), g.param("w", d, heads), name="y", whole="bdh")
    wide = g.op("tanh", "bh->bh", y, name="wide", whole="bh")
    z = g.op("matmul", "bh,hd->bd", wide, g.param("v", heads, out), name="z", through=MATMUL)
    return g.graph(g.op("mean", "bd->", z, name="train.loss", through=((0,),)))


def test_labels_reduce_where_it_is_cheapest() -> None:
    """The gradient is summed over mp once: of the activation where that is small, of the parameter where that is."""
    rules = "mesh mp = 4; split heads over mp"
    small = planned(unsplit_chain(8), rules, 4)
    assert moves(small) == [("wide", MoveKind.I_TO_R, ("mp",))]
    assert params(small)["w"] == (((), ()), ())
    large = planned(unsplit_chain(64), rules, 4)
    assert moves(large) == []
    assert params(large)["w"] == (((), ()), ("mp",))


def test_metrics_follow_the_loss() -> None:
    g = GraphMaker()
    batch, d = g.dim("batch", 8), g.dim("d", 16)
    y = g.op("matmul", "bd,de->be", g.data("x", batch, d), g.param("w", d, g.dim("e", 16)), name="y", through=MATMUL)
    g.op("mean", "be->", y, name="train.m", through=((0,),), gradient=False, section="metric")
    loss = g.op("sum", "be->", y, name="train.loss", through=((0,),))
    found = planned(g.graph(loss), "mesh dp = 4; split batch over dp", 4)
    assert [found.graph.ops[s.index].path for s in found.steps] == ["y", "train.loss", "train.m"]


def test_one_rank_takes_no_strategy() -> None:
    made = program(quickstart(), "strategy s {\n  at h: shard ((2, 4), (4, 1))\n}\n")
    found = plan(made, None, 1, Sink())
    assert found is not None
    assert (found.strategy, found.conversions, found.meshes[0].size) == ("", (), 1)


def test_strategies_by_name() -> None:
    made = program(quickstart(), "strategy first {\n  mesh dp = auto\n  split batch over dp\n}\n")
    sink = Sink()
    assert plan(made, "frist", 4, sink) is None
    assert (sink.found[0].code, sink.found[0].help) == ("SH301", ("did you mean `first`?",))
    sink = Sink()
    assert plan(program(quickstart(), ""), None, 4, sink) is None
    assert sink.found[0].code == "SH302"


def test_strict_names_what_is_redistributed() -> None:
    made = program(quickstart(), "strategy s {\n  at h: shard ((2, 4), (4, 1))\n  strict\n}\n")
    sink = Sink()
    assert plan(made, None, 8, sink) is None
    assert [(d.code, d.message.split("`")[1]) for d in sink.found] == [("SH350", "h"), ("SH350", "y")]


def test_a_plan_does_not_grow_with_ranks() -> None:
    rules = "mesh dp = auto, mp = 2; split batch over dp; split hidden over mp"
    few, many = planned(mlp(), rules, 4), planned(mlp(), rules, 128)
    assert (len(few.conversions), len(few.steps)) == (len(many.conversions), len(many.steps))


def test_strict_allows_what_a_rule_asks_for() -> None:
    text = "strategy s {\n  at h: shard ((2, 4), (4, 1)) -> ((8, 1))\n  at y: shard ((8, 1), (1, 1))\n  strict\n}\n"
    sink = Sink()
    assert plan(program(quickstart(), text), None, 8, sink) is not None, [d.message for d in sink.found]
