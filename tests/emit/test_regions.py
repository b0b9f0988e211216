"""What is computed again: regions keep the order of what they read, and leave the smaller forms to be kept."""

from __future__ import annotations

import ast

import pytest

from shardlang.emit.given import made_forms, read_forms
from shardlang.emit.regions import Region, arranged, inputs_of, outputs_of
from shardlang.graph.graph import Kind
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


@by_strategy
def test_every_step_once_and_after_what_it_reads(strategy: str) -> None:
    plan = planned(PROGRAM, 2, strategy)
    items = arranged(plan, plan.steps)
    steps = [step for item in items for step in (item.steps if isinstance(item, Region) else [item])]
    assert sorted(steps, key=str) == sorted(plan.steps, key=str)
    leaves = {value.id for value in plan.graph.values if value.kind is not Kind.RESULT}
    made = {(value, -1) for value in leaves}
    for step in steps:
        assert set(read_forms(plan, step)) <= made
        made.update(made_forms(plan, [step]))


@by_strategy
def test_a_region_is_of_one_group_and_all_groups_have_one(strategy: str) -> None:
    plan = planned(PROGRAM, 2, strategy)
    regions = [item for item in arranged(plan, plan.steps) if isinstance(item, Region)]
    assert {region.group for region in regions} == set(range(len(plan.recompute)))
    for region in regions:
        ops = {plan.ops[step.index].op for step in region.steps if step.kind == "op"}
        assert ops <= set(plan.recompute[region.group])


def test_a_layer_within_a_layer_is_a_region_between_two() -> None:
    plan = planned(PROGRAM, 2, "nested")
    paths = [item.path for item in arranged(plan, plan.steps) if isinstance(item, Region)]
    assert paths == ["first", "first.inner", "first", "second"]


def test_the_smaller_form_is_kept() -> None:
    """Cut along `seq` between layers: what is gathered is gathered again, what is scattered is scattered before."""
    plan = planned(PROGRAM, 2, "whole")
    first, second = (item for item in arranged(plan, plan.steps) if isinstance(item, Region))
    for region in (first, second):
        for value, at in (*inputs_of(plan, region), *outputs_of(plan, region, plan.steps, [])):
            layout = plan.conversions[at].to if at >= 0 else plan.produced[value]
            assert layout.dims[1] == ("mp",), plan.graph.values[value].path


@by_strategy
def test_the_text_is_python_whose_names_are_bound(strategy: str) -> None:
    text = main_file(PROGRAM, 2, strategy)
    tree = ast.parse(text)
    forward = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
    inner = [n for n in forward.body if isinstance(n, ast.FunctionDef)]
    assert len(inner) == text.count("rt.recompute(") == text.count("but computed again there")
    for function in inner:
        names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
        bound = {a.arg for a in function.args.args} | {n.id for n in names if isinstance(n.ctx, ast.Store)}
        assert {n.id for n in names if isinstance(n.ctx, ast.Load)} - bound <= {"rt", "torch", "F", "mesh", "p"}
