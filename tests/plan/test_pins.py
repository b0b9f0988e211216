"""Pinned layouts, splits and places, one rule at a time: what they demand, and what is told of what cannot be."""

from __future__ import annotations

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from shardlang.types.layout import layout_text
from tests.emit import sources

TEXT = """\
use std.nn: Linear

dim batch = 8, heads = 4, width = 6, out = 12

model Net {
  layer fc = Linear(heads * width, out)
  param w: [heads * width] = normal(0.1)
  param scale: [1, out] = ones()

  forward(x: [batch, heads * width]) -> [batch, out] {
    y = x * w
    s = softmax(y, over = heads * width)
    h = fc(s)
    return relu(h) * scale
  }
}

strategy s {
  mesh dp = 2, mp = 2
  split batch over dp
  RULES
}

train {
  model = Net()
  data = random(x: [batch, heads * width], batches = 1)
  z = model(x)
  loss = mean(square(z))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def planned(rules: str, ranks: int = 4) -> tuple[Plan | None, list[str]]:
    plan, sink = sources.tried(TEXT.replace("RULES", rules.replace("; ", "\n  ")), ranks)
    return plan, [f"{d.code}: {d.message}" for d in sink.found]


def layout_of(plan: Plan | None, path: str) -> str:
    assert plan is not None
    value = next(v for v in plan.graph.values if v.path == path)
    layout = plan.produced[value.id]
    return layout_text(value.type, layout, plan.meshes[layout.mesh])


@pytest.mark.parametrize(
    ("rules", "path", "layout"),
    [
        ("at y: [batch@dp, heads@mp * width]", "y", "[batch@dp, heads@mp * width]"),
        ("at y: [batch@(dp, mp), heads * width]", "y", "[batch@(dp, mp), heads * width]"),
        ("at y: [..., heads@mp * width]", "y", "[batch, heads@mp * width]"),
        ("at h: [batch@dp, out@mp]", "h", "[batch@dp, out@mp]"),
        ("at w: [heads@mp * width]", "w", "[heads@mp * width] ^dp"),
        ("at scale: [1, out@mp]", "scale", "[1, out@mp] ^dp"),
        ("at h: [batch@dp, out] ^mp", "h", "[batch@dp, out] ^mp"),
        ("split heads over mp", "y", "[batch@dp, heads@mp * width]"),
        ("split out over mp; at fc: split out over mp", "h", "[batch@dp, out@mp]"),
    ],
)
def test_a_value_lies_as_it_is_pinned(rules: str, path: str, layout: str) -> None:
    plan, found = planned(rules)
    assert plan is not None, found
    if path == "h":
        path = next(v.path for v in plan.graph.values if v.id == plan.graph.addresses["h"][0])
    assert layout_of(plan, path) == layout


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("at y: [batch@dp, heads * width@mp]", "SH305: `width` is a minor factor"),
        ("split width over mp", "SH305: `width` is the minor factor of `heads * width`"),
        ("at y: [batch@dp, heads@nowhere * width]", "SH306: the mesh has no axis `nowhere`"),
        ("at y: [batch@dp, heads * width] +nowhere", "SH306: the mesh has no axis `nowhere`"),
        ("at y: [batch@dp, heads * width] ^nowhere", "SH306: "),
        ("at y: [batch@dp]", "SH317: `y` is [batch, heads * width], and the rule is for "),
        ("at y: [batch@dp, out]", "SH317: "),
        ("at y: [batch@dp, heads]", "SH317: "),
        ("at y: [batch, ..., out]", "SH317: "),
        ("at y: bf16[batch@dp, heads * width]", "SH317: `y` is f32, and the rule is for bf16"),
        ("at w: [heads * width] +mp", "SH317: `w` is stored, so it cannot be pending or replicated"),
        ("at w: [heads@(mp, mp) * width]", "SH310: "),
        ("at fc: [batch@dp, out]", "SH321: a layout is for one value, and the selector names a layer"),
        ("[batch@dp, out]", "SH"),
        ("split out over (mp, mp)", "SH310: axis `mp` is given twice"),
        ("split out over mp; split out over dp", "SH3"),
        ("split batch over mp", "SH309: two rules split `batch` differently"),
        ("at y: split out over mp", "SH308: nothing that the selector covers has a dim `out`"),
        ("at y: zero 1 over dp", "SH308: the selector covers no parameter"),
        ("zero 4 over dp", "SH321: there is no zero 4"),
        ("zero 1 over nowhere", "SH306: "),
        ("zero 1 over dp; zero 2 over dp", "SH309: two rules give "),
        ("bucket gradients 25MB; bucket gradients 1MB", "SH321: the size of the buckets is given twice"),
        ("bucket gradients 25us", "SH321: `25us` is no size of a bucket"),
        ("at fc: place on moon", "SH321: there is no place `moon`"),
        ("mesh mp = 2", "SH319: a strategy has one mesh"),
    ],
)
def test_rules_that_cannot_be(rules: str, message: str) -> None:
    _, found = planned(rules)
    assert found and any(f.startswith(message) for f in found), found


def test_sizes_of_axes_are_expressions_of_dims_and_axes_before_them() -> None:
    for mesh, ranks in (("a = heads / 2, b = a", 4), ("a = 2 * heads - 6, b = 1 + a - 1", 4), ("a = -(-2), b = 2", 4)):
        text = TEXT.replace("mesh dp = 2, mp = 2", f"mesh {mesh}").replace("batch over dp", "batch over (a, b)")
        assert [axis.size for axis in sources.planned(text.replace("RULES", ""), ranks).meshes[0].axes] == [2, 2]
    for mesh in ("a = heads / 3, b = 2", "a = nowhere, b = 2", 'a = "2", b = 2', "a = 2 / 0, b = 2", "a = 0, b = 2"):
        text = TEXT.replace("mesh dp = 2, mp = 2", f"mesh {mesh}").replace("batch over dp", "batch over (a, b)")
        sink = Sink()
        program = driver.check_source(Source("net.shard", text.replace("RULES", "")), sink)
        if program is not None:
            driver.plan_program(program, None, 4, sink)
        assert [d.code for d in sink.found][:1] in (["SH319"], ["SH101"]), (mesh, [d.message for d in sink.found])


def test_split_statistics_are_counted() -> None:
    """softmax over 24 elements of 4 rows, cut in 2: a maximum and a sum of 4 forward, a sum of 4 backward, in f32."""
    plan, found = planned("split heads over mp")
    assert plan is not None, found
    (softmax,) = [plan.ops[op.id] for op in plan.graph.ops if op.operator == "softmax"]
    # An all-reduce of 16 bytes over 2 ranks sends 16.
    assert [(axes, forward, backward) for _, axes, forward, backward in softmax.inside] == [(("mp",), 32, 16)]


def test_what_only_metrics_read_has_no_dual() -> None:
    """cumsum needs the batch whole: z is exchanged for it, and nothing goes back; the loss reads z as it is."""
    text = TEXT.replace("RULES", "").replace(
        "loss = mean(square(z))", "loss = mean(square(z))\n  metric m = mean(cumsum(z, over = batch))"
    )
    plan = sources.planned(text.replace(", mp = 2", ""), 2)
    assert [c.move.forward_bytes > 0 for c in plan.conversions] == [True, True]
    assert {(c.gradient, c.move.backward_bytes) for c in plan.conversions} == {(False, 0)}
