"""Attention with a window, a cap, a bias, sinks and weights that drop out, over cut sequences and heads: ranks compute
what one device does, and keep what the plan says.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlang.cli.main import shardc
from tests.end_to_end.test_alive import kept

pytestmark = pytest.mark.slow
PROGRAM = """\
dim batch = 8, heads = 4, kv = 2, seq = 16, key = seq, e = 4, d = heads * e, classes = 3

model Net {
  param wq: [d, heads * e] = normal(0.3)
  param wk: [d, kv * e] = normal(0.3)
  param wv: [d, kv * e] = normal(0.3)
  param wo: [heads * e, classes] = normal(0.3)
  param slopes: [heads, seq, key] = normal(0.5)
  param sinks: [heads] = normal(0.5)

  forward(x: [batch, seq, d]) -> [batch, seq, classes] {
    q = rearrange(x @ wq -> [batch, heads, seq, e])
    k = rearrange(x @ wk -> [batch, kv, seq, e])
    v = rearrange(x @ wv -> [batch, kv, seq, e])
    mixed = attention(q, k, v, causal = true, window = 6, softcap = 2.0, p = 0.2, bias = slopes, sinks = sinks)
    local = attention(q, k, v, window = 3, keep = mean(x, over = d) > 0.0)
    even = attention(q, k, v, causal = true, p = 0.1, bias = slopes)
    return rearrange(mixed + local + even -> [batch, seq, heads * e]) @ wo
  }
}

strategy s {
  RULES
}

train {
  model = Net()
  data = random(x: [batch, seq, d], label: i64[batch, seq] < classes, batches = 2)
  loss = cross_entropy(model(x), label)
  optimizer = adamw(lr = 1e-3)
  precision = PRECISION
  steps = 2
}
"""
RING = "mesh cp = 2, tp = 2\n  split seq over cp\n  split kv, heads over tp\n  at mixed, local: attend in a ring\n"
RULES = {
    "ring": RING + "  at even: attend evenly",
    "parts": "mesh dp = 2, cp = 2\n  split batch over dp\n  split seq over cp\n  microbatches 2\n  zero 2 over dp",
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_ranks_compute_what_one_device_does(rules: str, tmp_path: Path) -> None:
    file = tmp_path / "scored.shard"
    file.write_text(PROGRAM.replace("RULES", rules).replace("PRECISION", "f32"))
    ran = CliRunner().invoke(shardc, ["verify", str(file), "--ranks", "4", "--steps", "2", "--json"])
    assert ran.exit_code == 0, ran.output
    (check,) = json.loads(ran.stdout)["checks"]
    assert check["ok"] and check["emitted"]["gradients"] > 30, check


@pytest.mark.parametrize(("rules", "precision"), [
    ("mesh dp = 1", "f32"), ("mesh tp = 2\n  split kv, heads over tp", "bf16"),
    ("mesh cp = 2\n  split seq over cp\n  at mixed, local: attend in a ring\n  at even: attend evenly", "f32"),
])  # fmt: skip
def test_the_plan_says_what_is_kept(rules: str, precision: str, tmp_path: Path) -> None:
    said, there = kept(PROGRAM, rules, 1 if "dp = 1" in rules else 2, precision, tmp_path)
    assert there == said


# Keys of padding have the number that imported masks have, also where a query sees no other. Each strategy computes
# attention of a part of the queries in another way.
LOW = """\
dim batch = 2, heads = 2, seq = 8, key = seq, e = 4, d = heads * e

model Net {
  param wq: [d, heads * e] = normal(0.5)
  param wk: [d, heads * e] = normal(0.5)
  param wv: [d, heads * e] = normal(0.5)
  param taught: [heads, 1, key] = normal(0.5)

  forward(x: [batch, seq, d], word: i64[batch, seq]) -> [batch, seq, heads * e] {
    q = HEADS(x @ wq)
    k = HEADS(x @ wk)
    v = HEADS(x @ wv)
    mask = where(relabel(word -> [batch, key]) > 0, 0.0, -3.4028234663852886e+38)
    rows = rearrange(mask -> [batch, 1, 1, key])
    mixed = attention(q, k, v, causal = true, bias = rows)
    learns = attention(q, k, v, bias = rows + taught)
    return rearrange(mixed + learns -> [batch, seq, heads * e])
  }
}

strategy gathered { mesh cp = 2
  split seq over cp }
strategy even { mesh cp = 2
  split seq over cp
  at mixed: attend evenly }
strategy ring { mesh cp = 2
  split seq over cp
  attend in a ring }
strategy ulysses { mesh cp = 2
  split seq over cp
  at mixed, learns: split heads over cp }

train {
  model = Net()
  data = random(x: [batch, seq, d], word: i64[batch, seq] < 2, batches = 3)
  loss = mean(square(model(x, word)))
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""
OTHER_KEYS = """\
dim batch = 4, seq = 4, key = 4, width = 5, wide = 6

model Net {
  param w: [width, wide] = normal(0.5)
  param low: [seq, key] = normal(0.5)

  forward(x: [batch, seq, width]) -> [batch, seq, wide] {
    h = x @ w
    ring = attention(h, h, h)
    k = relabel(ring -> [batch, key, wide])
    return attention(h, k, k, bias = low)
  }
}

strategy s {
  mesh tp = 2
  split seq over tp
  attend in a ring
}

train {
  model = Net()
  data = random(x: [batch, seq, width], label: [batch, seq, wide], batches = 2)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def test_low_masks_are_those_of_one_device(tmp_path: Path) -> None:
    file = tmp_path / "low.shard"
    file.write_text(re.sub(r"HEADS\((.*)\)", r"rearrange(\1 -> [batch, heads, seq, e])", LOW))
    ran = CliRunner().invoke(
        shardc, ["verify", str(file), "--ranks", "2", "--steps", "3", "--all-strategies", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    assert [check["ok"] for check in json.loads(ran.stdout)["checks"]] == [True] * 4


def test_a_bias_of_an_attention_that_is_in_no_ring_is_that_of_its_queries(tmp_path: Path) -> None:
    """Its keys are no dim that is cut, so it is computed as without the rule."""
    file = tmp_path / "other.shard"
    file.write_text(OTHER_KEYS)
    ran = CliRunner().invoke(shardc, ["verify", str(file), "--ranks", "2", "--steps", "2", "--json"])
    assert ran.exit_code == 0, ran.output
    (check,) = json.loads(ran.stdout)["checks"]
    assert check["ok"], check
