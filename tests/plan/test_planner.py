"""Plans of the small programs that the language is explained with: layouts, collectives, storage, steps."""

from __future__ import annotations

from shardlang.plan.plan import MoveKind, Plan
from shardlang.types.layout import layout_text
from tests.emit import sources
from tests.plan.small import example, strategy


def planned(name: str, rules: str, ranks: int) -> Plan:
    return sources.planned(example(name, strategy(rules)), ranks)


NET = """
dim DIMS

model Net {
  PARAMS

  forward(x: [batch, d]) -> [RESULT] {
    LINES
  }
}

STRATEGY
train {
  model = Net()
  data = random(x: [batch, d], batches = 1)
  z = model(x)
  loss = mean(square(z))
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


def net(dims: str, params: str, lines: str, result: str, rules: str, ranks: int) -> Plan:
    """The plan of a model's lines; semicolons end lines."""
    text = NET.replace("DIMS", dims).replace("RESULT", result).replace("STRATEGY", strategy(rules))
    text = text.replace("PARAMS", "\n  ".join(f"param {each} = normal(0.1)" for each in params.split("; ")))
    return sources.planned(text.replace("LINES", lines.replace("; ", "\n    ")), ranks)


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
    found = planned("quickstart", "at h: shard ((2, 4), (4, 1))", 8)
    assert results(found) == ["[batch@a, hidden] +b", "[batch@a, hidden@b]", "[batch@a, output] +b", "[] +(a, b)"]
    assert moves(found) == [("h", MoveKind.P_TO_S, ("b",)), ("y", MoveKind.P_TO_S, ("b",))]
    assert params(found) == {"w": ((("b",), ()), ("a",)), "w2": ((("b",), ()), ("a",))}
    assert [op.chosen for op in found.ops] == ["shard", "propagated", "propagated", "propagated"]


def test_rows_then_columns_by_count_and_by_name() -> None:
    by_count = planned("dense_chain", "at y: shard ((4, 1), (1, 1)); at z: shard ((1, 1), (1, 4))", 4)
    by_name = planned("dense_chain", "mesh a = 4; at y: [batch@a, k]; at z: [batch, m@a]", 4)
    assert moves(by_count) == moves(by_name) == [("y", MoveKind.S_TO_R, ("a",))]
    assert by_count.produced == by_name.produced
    assert params(by_name) == {"w": (((), ()), ("a",)), "v": (((), ("a",)), ())}


def test_data_parallel_needs_no_conversion() -> None:
    found = planned("digits", "mesh dp = auto; split batch over dp", 4)
    assert found.conversions == ()
    assert {reduce for _, reduce in params(found).values()} == {("dp",)}
    assert results(found)[-1] == "[] +dp"  # the accuracy's


def test_a_bias_joins_a_pending_sum_without_communication() -> None:
    found = planned("digits", "mesh mp = auto; split hidden over mp", 4)
    assert ("down.bias", MoveKind.I_TO_P, ("mp",)) in moves(found)
    assert params(found)["down.bias"] == (((),), ())
    assert params(found)["down.weight"] == (((), ("mp",)), ())


def test_zero_is_kept_with_its_axes() -> None:
    found = planned("digits", "mesh dp = auto; split batch over dp; zero 3 over dp", 4)
    assert {(p.zero, p.zero_axes) for p in found.params.values()} == {(3, ("dp",))}
    both = planned("digits", "mesh dp = 2, mp = 2; split hidden over mp; split batch over dp; zero 1 over (dp, mp)", 4)
    axes = {both.graph.values[p.value].path: p.zero_axes for p in both.params.values()}
    assert axes["up.weight"] == ("dp",)


def test_an_output_layout_is_made_at_once() -> None:
    found = planned("quickstart", "at h: shard ((2, 4), (4, 1)) -> ((8, 1))", 8)
    assert layout_text(found.graph.values[4].type, found.conversions[0].to, found.meshes[0]) == "[batch@(a, b), hidden]"


def test_unrelated_meshes_are_bridged() -> None:
    lines = "h = x @ w; z = h @ v; return z"
    rules = "at h: shard ((2, 3), (3, 1)); at z: shard ((3, 2), (2, 1))"
    found = net("batch = 36, d = 36, e = 36", "w: [d, e]; v: [e, d]", lines, "batch, d", rules, 6)
    assert MoveKind.VIEW in {kind for _, kind, _ in moves(found)}


def test_three_uses_of_one_value_share_their_conversion() -> None:
    lines = "x1 = x @ w; a = x1 @ q; b = x1 @ k; c = x1 @ v; return a * b * c"
    params = "w: [d, e]; q: [e, heads]; k: [e, heads]; v: [e, heads]"
    rules = "mesh mp = 4; split heads over mp; at x1: [batch, e]"
    found = net("batch = 8, d = 16, e = 16, heads = 16", params, lines, "batch, heads", rules, 4)
    assert [m for m in moves(found) if m[0] == "x1"] == [("x1", MoveKind.I_TO_R, ("mp",))]


def test_labels_reduce_where_it_is_cheapest() -> None:
    """The gradient is summed over mp once: of the activation where that is small, of the parameter where that is. No
    other dim than heads divides."""

    def found(batch: int) -> Plan:
        lines, dims = "y = x @ w; wide = tanh(y); z = wide @ v; return z", "d = 15, e = 63, heads = 64"
        rules = "mesh mp = 4; split heads over mp"
        return net(f"batch = {batch}, {dims}", "w: [d, e]; v: [e, heads]", lines, "batch, heads", rules, 4)

    small, large = found(9), found(65)
    assert moves(small) == [("wide", MoveKind.I_TO_R, ("mp",))] and params(small)["w"] == (((), ()), ())
    assert moves(large) == [] and params(large)["w"] == (((), ()), ("mp",))


def test_metrics_follow_the_loss() -> None:
    found = planned("digits", "mesh dp = 4; split batch over dp", 4)
    paths = [found.graph.ops[s.index].path for s in found.steps]
    assert paths[-4:-2] == ["train.loss", "train.metric:accuracy:1"] and paths[-1] == "train.metric:accuracy"


def test_one_rank_takes_no_strategy() -> None:
    found = planned("quickstart", "at h: shard ((2, 4), (4, 1))", 1)
    assert (found.strategy, found.conversions, found.meshes[0].size) == ("", (), 1)


def test_strategies_by_name() -> None:
    text = example("quickstart", "strategy first {\n  mesh dp = auto\n  split batch over dp\n}\n")
    plan, sink = sources.tried(text, 4, "frist")
    assert plan is None and (sink.found[0].code, sink.found[0].help) == ("SH301", ("did you mean `first`?",))
    plan, sink = sources.tried(example("quickstart"), 4)
    assert plan is None and sink.found[0].code == "SH302"


def test_strict_names_what_is_redistributed() -> None:
    plan, sink = sources.tried(example("quickstart", strategy("at h: shard ((2, 4), (4, 1)); strict")), 8)
    assert plan is None
    assert [(d.code, d.message.split("`")[1]) for d in sink.found] == [("SH350", "h"), ("SH350", "y")]


def test_strict_allows_what_a_rule_asks_for() -> None:
    planned("quickstart", "at h: shard ((2, 4), (4, 1)) -> ((8, 1)); at y: shard ((8, 1), (1, 1)); strict", 8)


def test_a_plan_does_not_grow_with_ranks() -> None:
    rules = "mesh dp = auto, mp = 2; split batch over dp; split hidden over mp"
    few, many = planned("digits", rules, 4), planned("digits", rules, 128)
    assert (len(few.conversions), len(few.steps)) == (len(many.conversions), len(many.steps))
