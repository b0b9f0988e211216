"""Every form that `shardc verify` asks of an emitted program has a variable there."""

from __future__ import annotations

from shardlang.interpret.verify.emitted import due, homes
from shardlang.plan.plan import MoveKind
from tests.emit.sources import planned

PROGRAM = """
dim batch = 8, seq = 3, hidden = 6

model Net {
  param w: [seq, hidden] = normal(0.5)
  forward(x: [batch, seq]) -> [batch, hidden] { return x @ w }
}

strategy s {
  mesh c = 3, dp = 2
  split hidden over (c, dp)
  at train.seen: shard ((2, 3))
}

train {
  model = Net()
  data = random(x: [batch, seq], target: [batch, seq])
  out = model(x)
  seen = square(target)
  loss = sum(0.1 * seen) + 0.1 * mean(square(out))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


TWICE = """
dim seq = 6, width = 4, other = 6, batch = 6, vocab = 8

model Net {
  param table: [vocab, width] = kaiming_uniform(4)
  param scale: [width, seq] = normal(0.3)

  forward(n: i64[batch, seq]) {
    x = embedding(n, table)
    y = tanh(x)
    turned = rearrange(x -> [batch, width, seq])
    h = einsum(y, table -> [batch, seq, vocab])
    scaled = turned * scale
    keys = relabel(h -> [batch, other, vocab])
    return attention(h, keys, keys, scale = 0.3)
  }
}

strategy s {
  at train.total: shard ((1, 2))
  at turned: shard ((6, 1, 1))
  at keys: shard ((1, 3, 2))
}

train {
  model = Net()
  data = random(n: i64[batch, seq] < 2, label: i64[batch, vocab] < 6, weight: [batch, vocab], batches = 2)
  out = model(n)
  logs = log_softmax(out, over = seq)
  nll = 0 - einsum(logs, cast(one_hot(label, seq), f32) -> [batch, vocab])
  kept = weight
  total = sum(kept)
  loss = sum(nll * kept) / (1 + total) + 1e-2 * mean(square(model.scaled))
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""


def test_a_number_that_two_meshes_read_needs_none() -> None:
    """It stands in the lines that read it; its view on the other mesh has no line either."""
    plan = planned(PROGRAM, 6, "s")
    assert due(plan) <= homes(plan).keys()
    assert any(plan.graph.values[each.value].constant is not None for each in plan.conversions)


def test_a_parameter_that_two_meshes_read_needs_none() -> None:
    """It is the same in both, and functions read it as what they are given."""
    plan = planned(TWICE, 6, "s")
    assert due(plan) <= homes(plan).keys()
    assert any(each.value in plan.params and each.move.kind is MoveKind.VIEW for each in plan.conversions)


# The model is also computed in evaluations, so it is a function in each stage; one rank has stages 1 and 2.
STAGES_OF_ONE_RANK = """
use std.nn: Linear

dim batch = 8, d = 8

model Net {
  param scale: [d] = ones()
  layer parts[4] = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    a = tanh(parts[0](x)) * scale
    b = tanh(parts[1](a)) * scale
    c = tanh(parts[2](b)) * scale
    return sin(parts[3](c)) * scale
  }
}

strategy s {
  mesh pp = 2
  stages over pp balanced, virtual = 2
  schedule "zbv"
  microbatches 4
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 2)
  eval = random(x: [batch, d], label: [batch, d], batches = 2, seed = 3)
  out = model(x)
  loss = mse_loss(out, label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def test_functions_of_one_name_in_files_of_one_rank_are_told_apart() -> None:
    plan = planned(STAGES_OF_ONE_RANK, 2, "s")
    assert plan.pipeline is not None and plan.pipeline.coordinates == (0, 1, 1, 0)
    inside = [home for home in homes(plan).values() if home.functions == ("net",)]
    assert {home.file for home in inside} > {"stage1.py", "stage2.py"} and not any(home.call for home in inside)
