"""Files of pipeline stages: each holds its own parameters and fields, and what one sends the next receives."""

from __future__ import annotations

import ast
import itertools
import re

import pytest

from shardlang import runtime as rt
from shardlang.emit.scope import scopes
from tests.emit.cases import ROOT
from tests.emit.sources import emitted_files, planned

# Layers whose biases join pending sums, so that parameters have conversions; a layer used in both stages; metrics that
# are a parameter of the first stage, and a state of none.
TWICE = """
use std.nn: Linear

dim batch = 8, d = 4, hidden = 8

model Net() {
  layer up = Linear(d, hidden)
  layer down = Linear(hidden, d)
  layer up2 = Linear(d, hidden)
  layer down2 = Linear(hidden, d)
  param shift: [d] = normal(0.1)
  param scale: [] = ones()
  state unused: [] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    a = up(x) * scale |> relu |> down
    b = up2(a + shift) |> relu |> down2
    return b + a + shift
  }
}

strategy staged {
  mesh pp = 2, mp = auto
  split hidden over mp
  stages over pp {
    0: up, down
    1: up2, down2
  }
  microbatches 2
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 2)
  eval = random(x: [batch, d], y: [batch, d], batches = 1)
  out = model(x)
  loss = mse_loss(out, y)
  metric reach = mean(abs(model.a))
  metric scale_of_the_first_stage = model.scale
  metric in_metrics_alone = model.unused
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""
# The loss is a parameter of the first stage.
LEAF = """
dim batch = 8, d = 4

model Scaled {
  param scale: [] = ones()
  forward(x: [batch, d]) -> [batch, d] { return x * scale }
}
model Plain {
  forward(x: [batch, d]) -> [batch, d] { return tanh(x) }
}
model Net {
  layer first = Scaled()
  layer second = Plain()
  forward(x: [batch, d]) -> [batch, d] { return x |> first |> second }
}
strategy s {
  mesh pp = 2
  stages over pp {
    0: first
    1: second
  }
  microbatches 2
}
train {
  model = Net()
  data = random(x: [batch, d], batches = 2)
  loss = model.first.scale
  metric reach = mean(model(x))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
PROGRAMS = [
    (TWICE, "staged", 4),
    (LEAF, "s", 2),
    ((ROOT / "tests" / "emit" / "programs" / "staged.shard").read_text(), "looped", 4),
    ((ROOT / "tests" / "emit" / "programs" / "staged.shard").read_text(), "zbv", 4),
]


@pytest.mark.parametrize(("text", "strategy", "ranks"), PROGRAMS, ids=["twice", "leaf", "looped", "zbv"])
def test_a_stage_reads_its_own_parameters(text: str, strategy: str, ranks: int) -> None:
    plan, files = planned(text, ranks, strategy), emitted_files(text, ranks, strategy)
    assert plan.pipeline is not None
    used = {plan.graph.values[value].path: stages for value, stages in plan.pipeline.param_stages.items()}
    for stage in range(len(plan.pipeline.coordinates)):
        for path in set(re.findall(r"\bp\.([\w.]+?)(?:\.double\(\)|[^\w.])", files[f"stage{stage}.py"])):
            assert stage in used.get(path, ()), (path, stage)


@pytest.mark.parametrize(("text", "strategy", "ranks"), PROGRAMS, ids=["twice", "leaf", "looped", "zbv"])
def test_every_name_that_a_stage_reads_is_there(text: str, strategy: str, ranks: int) -> None:
    for name, file in emitted_files(text, ranks, strategy).items():
        module = ast.parse(file)
        imported = [n for node in module.body if isinstance(node, ast.ImportFrom) for n in node.names]
        there = {n.name for n in (*module.body, *imported) if isinstance(n, ast.FunctionDef | ast.alias)}
        for function in ast.walk(module):
            if isinstance(function, ast.FunctionDef):
                names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
                known = {a.arg for a in function.args.args} | {n.id for n in names if isinstance(n.ctx, ast.Store)}
                known |= there
                free = {n.id for n in names if isinstance(n.ctx, ast.Load)} - known
                assert free <= {"rt", "torch", "F", "math", "mesh"}, (name, function.name, free)


@pytest.mark.parametrize(("text", "strategy", "ranks"), PROGRAMS, ids=["twice", "leaf", "looped", "zbv"])
def test_what_is_sent_is_what_is_received(text: str, strategy: str, ranks: int) -> None:
    parts = scopes(planned(text, ranks, strategy))
    assert parts[0].received == () and parts[-1].sent == ()
    for one, following in itertools.pairwise(parts):
        assert len(one.sent) == len(following.received) > 0
        assert one.loss is None and following.loss is not None if following is parts[-1] else True
    main = emitted_files(text, ranks, strategy)["main.py"]
    given = {"rt": rt, "mesh": rt.Mesh()}
    lists = ast.parse(main).body
    for node in lists:
        named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id
        if named and named.startswith("received"):
            given[named] = eval(ast.unparse(node.value), given)
    stages = next(node for node in lists if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "stages")
    told = [next((k.value for k in call.keywords if k.arg == "receives"), ast.List([])) for call in stages.value.elts]
    assert [len(eval(ast.unparse(r), given)) for r in told] == [len(part.received) for part in parts]
