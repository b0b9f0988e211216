"""Strategies against hand-made graphs: what they demand, and each mistake with the text it offers."""

from __future__ import annotations

import pytest

from shardlang.check.program import CheckedProgram
from shardlang.check.selectors import Specificity
from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph
from shardlang.plan.demand import ResolvedStrategy
from shardlang.plan.resolve import resolve
from shardlang.plan.strategy.rules import SplitRule
from tests.emit import sources
from tests.fuzz.large import deep
from tests.plan.small import example, strategy


def tried(program: CheckedProgram, ranks: int | None) -> tuple[ResolvedStrategy | None, Sink]:
    sink = Sink()
    return resolve(program, program.strategies[0], ranks, sink), sink


def resolved(name: str, rules: str, ranks: int | None) -> tuple[ResolvedStrategy, Graph]:
    program = sources.checked(example(name, strategy(rules)))
    found, sink = tried(program, ranks)
    assert found is not None, [d.message for d in sink.found]
    return found, program.graph


# program, ranks, rules, code, part of the message, part of the help
# fmt: off
MISTAKES = [
    ("quickstart", 8, "at h: shard ((2, 4), (4, 1), (1, 1))", "SH313", "2 inputs, `x` and `w`", "shard ((2, 4), (4, 1"),
    ("quickstart", 8, "at h: shard ((2, 4))", "SH313", "the rule has 1 tuple", "shard ((2, 4), (4, 1))"),
    ("quickstart", 8, "at h: shard ((2, 4, 1), (4, 1))", "SH314", "2 dims, and its tuple has 3 entries", "(2, 4)"),
    ("quickstart", 8, "at h: shard ((2), (4, 1))", "SH314", "its tuple has 1 entry", "(2, 4)"),
    ("quickstart", 8, "at h: shard ((2, 4), (2, 1))", "SH315", "cut in 4 in one input and in 2", "write 4 in both"),
    ("quickstart", 8, "at h: shard ((2, 1), (1, 3))", "SH304", "`hidden` does not divide in 3", "1, 2, 4, 8 or 16"),
    ("quickstart", 8, "at h: shard ((4, 4), (4, 1))", "SH316", "more than there are ranks (8)", "2, 4 or 8"),
    ("quickstart", 6, "at h: shard ((4, 1), (1, 1))", "SH316", "6 ranks cannot share out", "2, 3 or 6"),
    ("quickstart", 8, "at w: shard ((4, 1))", "SH312", "`w` is not computed by an operator", "at w: [dim@axis, ...]"),
    ("quickstart", 8, "mesh a = 8; at h: shard ((2, a), (a, 1))", "SH316", "not both", "`_` for dims that stay whole"),
    ("quickstart", 8, "mesh a = 2, b = 4; at h: shard ((a, b), (a, _))", "SH315", "over b in one", "write b"),
    ("quickstart", 8, "mesh dp = 2, mp = 2; split batch over dp", "SH303", "= 4 ranks, and 8", "`dp = 4` or `mp = 4`"),
    ("quickstart", 8, "mesh dp = 2, mp = 3; split batch over dp", "SH303", "2 * 3 = 6 ranks", "`mp = 4` would fit"),
    ("quickstart", 8, "mesh dp = 4, mp = 4; split batch over dp", "SH303", "4 * 4 = 16 ranks", "`dp = 2` or `mp = 2`"),
    ("quickstart", 8, "mesh dp = auto, mp = 3; split batch over dp", "SH303", "a multiple of 3", "`mp = 2`, "),
    ("quickstart", 8, "mesh dp = auto; split batch over pp", "SH306", "no axis `pp`", "`dp`"),
    ("quickstart", 8, "split batch over dp", "SH306", "no axis `dp`", "mesh dp = auto"),
    ("quickstart", None, "mesh dp = auto; split bacth over dp", "SH307", "no dim `bacth`", "`batch`"),
    ("quickstart", None, "mesh dp = auto; at hiden: split batch over dp", "SH308", "matches nothing", "paths begin"),
    ("digits", None, "mesh mp = auto; at up: split classes over mp", "SH308", "`classes`", "batch, hidden, pixels"),
    ("quickstart", 8, "mesh a = 2, b = 4; split hidden over a; split hidden over b", "SH309", "differ", "keep"),
    ("quickstart", 8, "at h: shard ((2, 4), (4, 1)); at h: shard ((8, 1), (1, 1))", "SH309", "`h` differ", "keep"),
    ("digits", None, "mesh a = auto; zero 1 over a; zero 2 over a", "SH309", "different zero levels", "keep one"),
    ("quickstart", 8, "mesh mp = auto; split hidden, output over mp", "SH310", "dims of `w2`", "`mp?`"),
    ("quickstart", 8, "mesh mp = auto; at h: [batch@mp, hidden@mp]", "SH310", "used twice on `h`", "keep one use"),
    ("quickstart", 8, "mesh mp = auto; at h: [batch@mp, output]", "SH317", "`h` is [batch, hidden]", "[batch, hidden]"),
    ("quickstart", 8, "mesh mp = auto; at a: [batch, hidden] +mp", "SH317", "the operator sums nothing", "leave"),
    ("digits", 8, "mesh mp = auto; split classes over mp", "SH304", "`classes` does not divide", "1, 2, 5 or 10"),
    ("digits", 8, "mesh pp = 2, mp = auto; split classes over mp", "SH304", "axis `mp`", "with `pp = 4` makes 8 ranks"),
    ("quickstart", None, "mesh a = auto; zero 4 over a", "SH321", "no zero 4", "3 parameters"),
    ("quickstart", None, "mesh a = auto; zero 3 over a, kept", "SH321", "knows no `kept`", "once a step"),
    ("quickstart", None, "mesh a = auto; zero 2 over a, keep", "SH321", "knows no `keep`", "zero 3 over .., keep"),
    ("quickstart", None, "mesh a = 2, b = auto; zero 3 over a, b", "SH321", "knows no `b`", "over (a, b)"),
    ("quickstart", None, "mesh a = auto; microbatches 0", "SH411", "number of microbatches is 0", "2 * pp"),
    ("quickstart", None, "mesh a = auto; recompute", "SH321", "needs a place", "at blocks[*]"),
    ("quickstart", None, "mesh a = auto; place on host", "SH321", "needs a selector", "at table: place on host"),
    ("quickstart", None, "mesh a = 2; stages over a balanced", "SH425", "there is no layer, and 2", "layer name"),
    ("quickstart", 8, "strict", "SH303", "no mesh and no positional rule", "mesh dp = auto"),
]
# fmt: on


@pytest.mark.parametrize(("name", "ranks", "rules", "code", "message", "offer"), MISTAKES)
def test_mistakes(name: str, ranks: int | None, rules: str, code: str, message: str, offer: str) -> None:
    found, sink = tried(sources.checked(example(name, strategy(rules))), ranks)
    assert found is None
    assert [d.code for d in sink.found] == [code], [d.message for d in sink.found]
    assert message in sink.found[0].message
    assert offer in " ".join(sink.found[0].help)


def axes_of(found: ResolvedStrategy, graph: Graph, name: str) -> dict[str, tuple[str, ...] | None]:
    op = next(o for o in graph.ops if o.path == name)
    demand = found.demands.get(op.id)
    factors = demand.factors if demand else (None,) * len(op.rule.factors)
    return {f.name: axes for f, axes in zip(op.rule.factors, factors, strict=True)}


def test_the_device_matrix_is_row_major_in_order_of_first_appearance() -> None:
    found, graph = resolved("quickstart", "at h: shard ((2, 4), (4, 1))", 8)
    assert [(a.name, a.size) for a in found.meshes[0].axes] == [("a", 2), ("b", 4)]
    assert found.meshes[0].groups(("b",)) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert axes_of(found, graph, "h") == {"batch": ("a",), "input": ("b",), "hidden": ()}


def test_what_is_left_over_is_the_fastest_varying_axis() -> None:
    found, _ = resolved("quickstart", "at h: shard ((2, 1), (1, 1))", 8)
    assert [(a.name, a.size) for a in found.meshes[0].axes] == [("a", 2), ("b", 4)]


def test_matrices_are_refined_to_common_axes() -> None:
    found, graph = resolved("quickstart", "at h: shard ((2, 4), (4, 1)); at a: shard ((8, 1))", 8)
    assert axes_of(found, graph, "a") == {"batch": ("a", "b"), "hidden": ()}
    named, graph = resolved("quickstart", "mesh dp = 8; split output over dp; at h: shard ((2, 4), (4, 1))", 8)
    assert [(a.name, a.size) for a in named.meshes[0].axes] == [("dp0", 2), ("dp1", 4)]
    assert axes_of(named, graph, "y")["output"] == ("dp0", "dp1")


def test_unrelated_matrices_get_meshes_of_their_own() -> None:
    rules = "at y: shard ((2, 3), (3, 1)); at z: shard ((3, 2), (2, 1))"
    program = sources.checked(example("dense_chain", strategy(rules), batch="36", n="36", k="36", m="36"))
    found, _ = tried(program, 6)
    assert found is not None and [[a.size for a in m.axes] for m in found.meshes] == [[2, 3], [3, 2]]


def test_split_reaches_contracted_dims_too() -> None:
    found, graph = resolved("digits", "mesh dp = auto, mp = 2; split batch over dp; split hidden over mp", 4)
    assert axes_of(found, graph, "down.return:1") == {"batch": ("dp",), "in": ("mp",), "out": None}


LINEAR = """model Linear(in: dim, out: dim) {
  param weight: [out, in] = normal(0.1)
  param bias: [out] = zeros()

  forward(x: [..., in]) -> [..., out] {
    y = einsum(x, weight -> [..., out]) + bias
    return y
  }
}"""


def test_the_more_specific_rule_replaces() -> None:
    rules = "mesh a = 2, b = 2; split hidden over (a, b); at up: split hidden over b; at up.y: split hidden over a"
    program = sources.checked(example("digits", strategy(rules)).replace("use std.nn: Linear", LINEAR))
    found, _ = tried(program, 4)
    assert found is not None
    assert axes_of(found, program.graph, "up.y")["out"] == ("a",)
    assert axes_of(found, program.graph, "up.y:1")["out"] == ("a",)  # within the statement of `up.y`
    assert axes_of(found, program.graph, "down.y:1")["in"] == ("a", "b")
    assert axes_of(found, program.graph, "h")["hidden"] == ("a", "b")


def test_pins_outrank_splits() -> None:
    found, graph = resolved("digits", "mesh a = 2, b = 2; split hidden over a; at h: [batch@b, hidden]", 4)
    assert axes_of(found, graph, "h") == {"batch": ("b",), "hidden": ()}
    assert found.demands[2].complete


def test_an_axis_that_gives_way() -> None:
    found, graph = resolved("digits", "mesh tp = 2; split batch over tp?; split hidden over tp", 2)
    assert axes_of(found, graph, "h") == {"batch": (), "hidden": ("tp",)}
    assert axes_of(found, graph, "train.loss")["batch"] == ("tp",)


def test_axes_of_size_one_vanish() -> None:
    found, graph = resolved("digits", "mesh dp = auto, mp = 4; split batch over dp; split hidden over mp", 4)
    assert [a.name for a in found.meshes[0].axes] == ["mp"]
    assert axes_of(found, graph, "h") == {"batch": (), "hidden": ("mp",)}


def test_ranks_are_not_needed_for_the_rest() -> None:
    found, _ = resolved(
        "digits", "mesh dp = auto, mp = 4; split batch over dp; split hidden over mp; zero 2 over dp", None
    )
    assert found.meshes == ()
    assert {z.level for z in found.zero.values()} == {2}


def test_uneven_allows_what_does_not_divide() -> None:
    found, graph = resolved("digits", "mesh mp = 4; split classes over mp uneven", 4)
    assert axes_of(found, graph, "down.return")["out"] == ("mp",)


def test_rules_are_asked_once_for_equal_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of rules over thousands of layers take seconds, not minutes."""
    asked, rank = [0], SplitRule.rank

    def counted(rule: SplitRule, values: tuple[int, ...]) -> Specificity | None:
        asked[0] += 1
        return rank(rule, values)

    monkeypatch.setattr(SplitRule, "rank", counted)
    text = deep(200, "  mesh dp = auto\n  split batch over dp\n" + "  at **.w: split d over dp\n" * 100)
    sources.planned(text, 2)
    assert asked[0] < 2_000
