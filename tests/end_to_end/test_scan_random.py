"""A scan whose cell draws random numbers: other ones in each step of the sequence, the same under every strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.process import shardc

PROGRAM = """
dim batch = 8, seq = 4, d = 8

model Cell(d: dim) {
  param w: [d] = ones()

  forward(x: [..., d], h: [..., d]) -> [..., d], [..., d] {
    kept = dropout(x * w + h, p = 0.5)
    return kept, 0.0 * h
  }
}

model Net {
  layer cell = Cell(d)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    y, last = scan(cell, x, expand(0.0 -> [batch, d]), over = seq)
    return y + rearrange(last -> [batch, 1, d])
  }
}

train {
  model = Net()
  data = random(x: [batch, seq, d], batches = 2)
  y = model(0.0 * x + 1.0)
  metric zeros = mean(where(y == 0, 1.0, 0.0))
  metric apart = mean(abs(y[seq = 1] - y[seq = 0]))
  metric further = mean(abs(y[seq = 3] - y[seq = 2]))
  loss = mean(square(y - 0.1 * x))
  optimizer = sgd(lr = 0.1)
  precision = f64
  steps = 4
}

strategy data {
  mesh dp = auto
  split batch over dp
}

strategy wide {
  mesh dp = 2, mp = auto
  split batch over dp
  split d over mp
}

strategy sequence {
  mesh sp = auto
  split seq over sp
}

strategy again {
  mesh dp = auto
  split batch over dp
  zero 3 over dp
  microbatches 2
  at cell: recompute
}
"""


def figures(folder: Path, strategy: str, ranks: int, *more: str) -> list[dict[str, float]]:
    (folder / "net.shard").write_text(PROGRAM)
    words = ("run", "net.shard", "--ranks", str(ranks), "--strategy", strategy, "--metrics", "m.jsonl", *more)
    done = shardc(*words, folder=folder)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("loss", "zeros", "apart", "further")} for line in lines]


def test_each_step_of_the_sequence_draws_numbers_of_its_own(tmp_path: Path) -> None:
    """Half of all elements are 0, and half of those of two steps differ, by the 2 / (1 - p) that others are."""
    found = figures(tmp_path, "data", 1, "--simulate")
    assert len({line["apart"] for line in found}) > 1 and len({line["zeros"] for line in found}) > 1
    for line in found:
        assert 0.3 < line["zeros"] < 0.7
        assert line["apart"] > 0.3 and line["further"] > 0.3 and line["apart"] != line["further"]


@pytest.mark.parametrize(
    ("strategy", "ranks", "how"),
    [
        ("data", 2, "--simulate"), ("data", 8, "--simulate"), ("wide", 4, "--simulate"), ("sequence", 2, "--simulate"),
        ("sequence", 4, "--simulate"), ("again", 2, "--simulate"), ("wide", 4, "--device=cpu"),
        ("again", 2, "--device=cpu"),
    ],
)  # fmt: skip
def test_every_strategy_draws_the_same(strategy: str, ranks: int, how: str, tmp_path: Path) -> None:
    wanted = figures(tmp_path, "data", 1, "--simulate")
    for line, one in zip(figures(tmp_path, strategy, ranks, how), wanted, strict=True):
        assert line == pytest.approx(one, rel=1e-12)
