"""Positional rules on product dims, and axis names in place of numbers: which factor each cut falls to."""

from __future__ import annotations

import pytest

from shardlang.plan.plan import Plan
from tests.emit.sources import tried

TEXT = """\
dim batch = 8, heads = 2, width = 6

model Net {
  param w: [heads * width] = normal(0.1)

  forward(x: [batch, heads * width]) -> [batch, heads * width] {
    y = x * w
    z = relu(y)
    q = tanh(z)
    return q
  }
}

strategy s {
  RULES
}

train {
  model = Net()
  data = random(x: [batch, heads * width], batches = 1)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def planned(rules: str, ranks: int) -> Plan | list[str]:
    plan, sink = tried(TEXT.replace("RULES", rules), ranks)
    return plan if plan is not None and not sink.failed else [d.code for d in sink.found]


def cuts(rules: str, ranks: int, name: str = "z") -> dict[str, int]:
    """Factor -> in how many pieces the operator that computes the value cuts it."""
    plan = planned(rules, ranks)
    assert isinstance(plan, Plan), plan
    op = next(o for o in plan.graph.ops if plan.graph.values[o.results[0]].name == name)
    found = plan.ops[op.id]
    return {f.name: plan.meshes[found.mesh].degree(a) for f, a in zip(op.rule.factors, found.factor_axes, strict=True)}


@pytest.mark.parametrize(
    ("pieces", "heads", "width"), [(1, 1, 1), (2, 2, 1), (4, 2, 2), (6, 2, 3), (12, 2, 6)]
)  # fmt: skip
def test_a_product_is_cut_major_first(pieces: int, heads: int, width: int) -> None:
    assert cuts(f"at z: shard ((1, {pieces}))", pieces if pieces > 1 else 2) == {
        "batch": 1, "heads": heads, "width": width,
    }  # fmt: skip


def test_pieces_that_cut_the_minor_factor_alone_are_refused() -> None:
    """3 of 2 * 6: blocks of 4 are no blocks of heads."""
    assert planned("at z: shard ((1, 3))", 3) == ["SH305"]


def test_axes_by_name_and_a_result_in_another_layout() -> None:
    rules = "mesh dp = 2, mp = 2\n  at z: shard ((dp, mp)) -> ((_, (dp, mp)))"
    assert cuts(rules, 4) == {"batch": 2, "heads": 2, "width": 1}
    plan = planned(rules, 4)
    assert isinstance(plan, Plan)
    value = next(v.id for v in plan.graph.values if v.name == "z")
    assert ((), ("dp", "mp")) in [c.to.dims for c in plan.conversions if c.value == value]
    # Also where the next operator is to have it in a third one.
    plan = planned(f"{rules}\n  at q: [batch@(dp, mp), heads * width]", 4)
    assert isinstance(plan, Plan)
    made = [c.to.dims for c in plan.conversions if c.value == value]
    assert made[-1] == (("dp", "mp"), ()) and ((), ("dp", "mp")) in made


@pytest.mark.parametrize(
    ("rules", "ranks", "code"),
    [
        ("mesh dp = 2\n  at z: shard ((dp, dp))", 2, "SH310"),
        ("mesh dp = 2\n  at z: shard ((dp, _)) -> ((cp, _))", 2, "SH306"),
        ("at z: shard ((2, 1)) -> ((1, 5))", 2, "SH304"),
        ("at z: shard ((2, 1)) -> ((1,))", 2, "SH314"),
        ("at z: shard ((3, 1))", 3, "SH304"),
    ],
)
def test_mistakes(rules: str, ranks: int, code: str) -> None:
    assert planned(rules, ranks) == [code]
