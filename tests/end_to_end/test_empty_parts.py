"""A rank with an empty part computes again what the others do: it issues the same collectives in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.curves import RunOf, figures
from tests.end_to_end.test_accumulation import same

pytestmark = pytest.mark.slow
# Three heads over four ranks: the last one has none.
ATTENTION = """\
dim batch = 4, seq = 8, d = 6, heads = 3, hd = 4, keys = seq

model Block {
  param wq: [d, heads * hd] = normal(0.3)
  param wk: [d, heads * hd] = normal(0.3)
  param wv: [d, heads * hd] = normal(0.3)
  param wo: [heads * hd, d] = normal(0.3)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    q = rearrange(x @ wq -> [batch, heads, seq, hd])
    k = relabel(rearrange(x @ wk -> [batch, heads, seq, hd]) -> [batch, heads, keys, hd])
    v = relabel(rearrange(x @ wv -> [batch, heads, seq, hd]) -> [batch, heads, keys, hd])
    mixed = attention(q, k, v)
    return x + rearrange(mixed -> [batch, seq, heads * hd]) @ wo
  }
}

model Net {
  layer blocks[2] = Block()

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    return x |> blocks
  }
}
"""
# The same of three channels.
CHANNELS = """\
dim batch = 4, seq = 8, d = 6, channels = 3, two = 2

model Net {
  param up: [d, channels * two] = normal(0.3)
  param down: [channels * two, d] = normal(0.3)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    h = rearrange(x @ up -> [batch, channels, two, seq])
    pooled = max_pool2d(h, 3, stride = 1, padding = 1)
    normal = group_norm(h + pooled, 3)
    return x + rearrange(normal -> [batch, seq, channels * two]) @ down
  }
}
"""
REST = """
strategy alone {
}

STRATEGIES
train {
  model = Net()
  data = random(x: [batch, seq, d], y: [batch, seq, d], batches = 2)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  precision = f64
  steps = 2
}
"""
CASES = {
    "heads": (ATTENTION, {
        "products": "at blocks[*]: recompute all but products", "gathers": "at blocks[*]: recompute gathers",
        "value": "at blocks[*].mixed: recompute", "values": "at blocks[*].k, blocks[*].v: recompute",
        "layer": "at blocks[*]: recompute",
    }),
    "channels": (CHANNELS, {
        "value": "at pooled: recompute", "values": "at h: recompute", "all": "at h, pooled, normal: recompute",
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_an_empty_part_computes_again(case: str, tmp_path: Path) -> None:
    program, rules = CASES[case]
    dim = "heads" if case == "heads" else "channels"
    strategies = (
        f"strategy {name} {{\n  mesh mp = 4\n  split {dim} over mp uneven\n  {rule}\n}}\n"
        for name, rule in rules.items()
    )
    alone, runs = RunOf("alone", 1), [RunOf(name, 4) for name in rules]
    found = figures(program + REST.replace("STRATEGIES", "".join(strategies)), [alone, *runs], tmp_path)
    for run in runs:
        same(found[run], found[alone], run.name, 1e-9)
