"""Dims that are cut unevenly, and by which other names operators call them."""

from __future__ import annotations

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.interpret.compare import verify_plan
from shardlang.plan.plan import Plan
from shardlang.source import Source

RELABELLED = """
dim batch = 12, seq = 3, width = 2, hidden = 3

model Net {
  param p: [hidden * seq] = normal(1.0)

  forward(x: [batch, seq, width]) {
    turned = rearrange(x -> [batch, width, seq])
    keys = relabel(turned -> [batch, width, hidden])
    scores = x @ keys
    merged = rearrange(scores -> [batch, hidden * seq])
    return merged * p
  }
}

strategy s {
  mesh tp = 2, mp = 2
  split hidden over tp uneven
  at train.out: split batch over mp
}

train {
  model = Net()
  data = random(x: [batch, seq, width], target: [batch, hidden * seq], batches = 2)
  out = model(x)
  loss = mse_loss(out, target)
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""


def planned(text: str, ranks: int) -> Plan:
    sink = Sink()
    program = driver.check_source(Source("uneven.shard", text), sink)
    plan = driver.plan_program(program, None, ranks, sink) if program is not None else None
    assert plan is not None, [d.message for d in sink.found]
    return plan


def test_a_dim_is_uneven_by_each_of_its_names() -> None:
    """`relabel` makes hidden of seq, so what is cut as hidden is cut as seq before it."""
    report = verify_plan(planned(RELABELLED, 4))
    assert report.ok, str(report.difference)
