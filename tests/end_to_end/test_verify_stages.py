"""`shardc verify` of pipelines: every schedule, tied parameters, values that skip stages, ZeRO, masked losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.test_verify import checks

pytestmark = pytest.mark.slow

NET = """use std.nn: Linear

dim batch = 32, d = 16, classes = 10

model Block(d: dim) {
  dim f = 2 * d
  layer up = Linear(d, f)
  layer down = Linear(f, d)

  forward(x: [..., d]) -> [..., d] {
    y = up(x) |> tanh |> down
    return x + y
  }
}

model Net {
  param table: [classes, d] = normal(0.1)
  layer blocks[4] = Block(d)

  forward(ids: i64[batch]) -> [batch, classes] {
    x = embedding(ids, table)
    h = x |> blocks
    z = h + x
    return einsum(z, table -> [batch, classes])
  }
}
STRATEGIES
train {
  model = Net()
  data = random(ids: i64[batch] < classes, label: i64[batch] < classes, batches = 4)
  scores = model(ids)
  loss = cross_entropy(scores, label, ignore_index = 0)
  metric accuracy = mean(argmax(scores, over = classes) == label)
  optimizer = adamw(lr = 0.01)
  clip = 0.5
  epochs = 1
}
"""
STRATEGY = """
strategy NAME {
  mesh pp = 2, dp = auto
  split batch over dp
  stages over pp balanced
  microbatches 4
  schedule "NAME"
}
"""
SCHEDULES = {
    "gpipe": {},
    "1f1b": {"microbatches 4": "microbatches 4\n  zero 2 over dp", "pp = 2, dp = auto": "dp = auto, pp = 2"},
    "interleaved_1f1b": {"balanced": "balanced, virtual = 2", "microbatches 4": "microbatches 4\n  zero 3 over dp"},
    "zero_bubble": {"batch over dp": "blocks.f over dp"},
    "zbv": {"balanced": "balanced, virtual = 2"},
    "dualpipe_v": {"balanced": "balanced, virtual = 2", "microbatches 4": "microbatches 4\n  zero 1 over dp"},
}


def test_every_schedule(tmp_path: Path) -> None:
    texts = []
    for name, changes in SCHEDULES.items():
        text = STRATEGY.replace("NAME", f"s_{name}", 1).replace("NAME", name)
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        texts.append(text)
    (tmp_path / "net.shard").write_text(NET.replace("STRATEGIES", "".join(texts)))
    found = checks(str(tmp_path / "net.shard"), "--ranks", "4", "--all-strategies", "--steps", "2")
    assert [c["strategy"] for c in found] == [f"s_{name}" for name in SCHEDULES]
    for check in found:
        assert check.get("ok"), check
        assert check["emitted"]["values"] > 40 and check["emitted"]["gradients"] > 40


IN_TWO_PARTS = """use std.nn: Linear

dim batch = 32, d = 16

model Net {
  layer first = Linear(d, d)
  layer fc = Linear(d, d)
  layer last = Linear(d, d)

  forward(x: [batch, d], y: [batch, d]) -> [batch, d] {
    h = first(x)
    beside = fc(y)
    return fc(h) |> last
  }
}

strategy s {
  mesh pp = 3
  stages over pp balanced
  schedule "zero_bubble"
  microbatches 4
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], label: [batch, d], batches = 2)
  loss = mse_loss(model(x, y), label) + 0.1 * mean(square(model.beside))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def test_a_gradient_that_comes_in_two_parts_is_their_sum(tmp_path: Path) -> None:
    """Of a weight that is used on the way from the stage before to the one after it, and on one that begins here."""
    (tmp_path / "net.shard").write_text(IN_TWO_PARTS)
    (found,) = checks(str(tmp_path / "net.shard"), "--ranks", "3", "--steps", "2")
    assert found.get("ok"), found
