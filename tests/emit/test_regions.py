"""What is computed again: regions keep the order of what they read, and leave the smaller forms to be kept."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest

from shardlang.emit.functions import BlockFunctions, FunctionBody
from shardlang.emit.recomputed_regions import Region, arranged
from shardlang.emit.scene import FileContext, Item
from shardlang.emit.text.sizes import Groups
from shardlang.graph.graph import Kind
from shardlang.plan.plan import Plan, Step
from shardlang.step.blocks.forms import Forms
from tests.emit.sources import main_file, planned

PROGRAM = """
use std.nn: Linear

dim batch = 8, seq = 8, d = 8, ffn = 16

model Inner(d: dim, ffn: dim) {
  layer up = Linear(d, ffn)
  layer down = Linear(ffn, d)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    return up(x) |> relu |> down |> dropout(p = 0.1)
  }
}

model Outer(d: dim, ffn: dim) {
  layer inner = Inner(d, ffn)
  param scale: [d] = ones()

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    h = tanh(x * scale)
    y = inner(h)
    return x + y * h
  }
}

model Net() {
  layer first = Outer(d, ffn)
  layer second = Outer(d, ffn)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    return x |> first |> second
  }
}

strategy whole {
  mesh mp = auto
  split ffn over mp
  split seq over mp?
  at first, second: recompute
}

strategy nested {
  mesh mp = auto
  split ffn over mp
  split seq over mp?
  at first, second: recompute
  at first.inner: recompute
}

strategy values {
  mesh mp = auto
  split ffn over mp
  at first.h, second.h: recompute
}

train {
  model = Net()
  data = random(x: [batch, seq, d], y: [batch, seq, d], batches = 2)
  out = model(x)
  loss = mse_loss(out, y)
  metric reach = mean(abs(out))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""
by_strategy = pytest.mark.parametrize("strategy", ["whole", "nested", "values"])


def unfolded(plan: Plan) -> FunctionBody:
    """All steps of a plan in one function."""
    scene = FileContext(plan, True, Forms(plan), plan.steps, None)
    return BlockFunctions(plan, Groups(plan.meshes), folded=False).body(scene, plan.steps, [])


def items_of(body: FunctionBody) -> Sequence[Item | Region]:
    return arranged(body.scene, body.call, body.items, body.ends)


def regions_of(plan: Plan) -> list[Region]:
    return [item for item in items_of(unfolded(plan)) if isinstance(item, Region)]


@by_strategy
def test_every_step_once_and_after_what_it_reads(strategy: str) -> None:
    plan = planned(PROGRAM, 2, strategy)
    body = unfolded(plan)
    steps = [step for item in items_of(body) for step in (item.items if isinstance(item, Region) else [item])]
    assert sorted(steps, key=str) == sorted(plan.steps, key=str)
    made = {(value.id, -1) for value in plan.graph.values if value.kind is not Kind.RESULT}
    for step in steps:
        assert set(body.scene.read(step)) <= made
        made.update(body.scene.made(step))


@by_strategy
def test_a_region_is_of_one_group_and_all_groups_have_one(strategy: str) -> None:
    plan = planned(PROGRAM, 2, strategy)
    regions = regions_of(plan)
    assert {region.group for region in regions} == set(range(len(plan.recompute)))
    for region in regions:
        steps = [step for step in region.items if isinstance(step, Step) and step.kind == "op"]
        assert {plan.ops[step.index].op for step in steps} <= set(plan.recompute[region.group].ops)


def test_a_layer_within_a_layer_is_a_region_between_two() -> None:
    paths = [region.path for region in regions_of(planned(PROGRAM, 2, "nested"))]
    assert paths == ["first", "first.inner", "first", "second"]


def test_the_smaller_form_is_kept() -> None:
    """Cut along `seq` between layers: what is gathered is gathered again, what is scattered is scattered before."""
    plan = planned(PROGRAM, 2, "whole")
    first, second = regions_of(plan)
    for region in (first, second):
        for value, at in (*region.reads, *region.gives):
            layout = plan.conversions[at].to if at >= 0 else plan.produced[value]
            assert layout.dims[1] == ("mp",), plan.graph.values[value].path


@by_strategy
def test_the_text_is_python_whose_names_are_bound(strategy: str) -> None:
    text = main_file(PROGRAM, 2, strategy)
    tree = ast.parse(text)
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    inner = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    expected = {"whole": 2, "nested": 4, "values": 2}
    assert text.count("rt.recompute(") == expected[strategy]
    for function in inner:
        names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
        bound = {n.id for n in names if isinstance(n.ctx, ast.Store)} | functions
        for each in ast.walk(function):
            bound |= {a.arg for a in each.args.args} | {each.name} if isinstance(each, ast.FunctionDef) else set()
        free = {n.id for n in names if isinstance(n.ctx, ast.Load)} - bound
        assert free <= {"rt", "torch", "F", "mesh", "p"}, (function.name, free)
