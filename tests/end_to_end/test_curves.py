"""The contract of the language: a strategy changes where a program runs, never its curve.

Examples under every strategy, on several numbers of ranks, against one rank.
"""

from __future__ import annotations

import gzip
import math
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.end_to_end.curves import ROOT, Figures, RunOf, figures

pytestmark = pytest.mark.slow
ALONE = RunOf("", 1)


def example(name: str, **changes: str) -> str:
    """An example's text; `changes` replace settings (`epochs = 10` by `steps = 40`)."""
    text = (ROOT / "examples" / f"{name}.shard").read_text()
    for old, new in changes.items():
        before = text
        text = text.replace(old.replace("_", " = ", 1), new)
        assert text != before
    return text


def farthest(one: Figures, other: Figures, name: str = "loss", steps: int | None = None) -> float:
    """The greatest difference of two curves, relative to their size."""
    a, b = one.curve(name)[:steps], other.curve(name)[:steps]
    assert len(a) == len(b) > 0
    return max(abs(x - y) / max(1e-3, abs(x)) for x, y in zip(a, b, strict=True))


def compare(found: dict[RunOf, Figures], tolerance: float, steps: int | None = None) -> None:
    """All runs against the one alone."""
    worst = {run.name: farthest(found[ALONE], figure, steps=steps) for run, figure in found.items() if run != ALONE}
    assert max(worst.values()) <= tolerance, worst


def test_quickstart(tmp_path: Path) -> None:
    found = figures(example("quickstart"), [ALONE, RunOf("propagated", 8)], tmp_path)
    compare(found, 1e-6)
    curve = found[ALONE].curve()
    assert len(curve) == 20
    assert curve[-1] < curve[0]


def test_operator_parallel(tmp_path: Path) -> None:
    compare(figures(example("operator_parallel"), [ALONE, RunOf("mixed", 8)], tmp_path), 1e-6)


def test_dense_chain(tmp_path: Path) -> None:
    runs = [ALONE, RunOf("rows_then_columns", 4), RunOf("named", 4)]
    compare(figures(example("dense_chain"), runs, tmp_path), 1e-6)


DIGITS = {"data_parallel": (1, 2, 8), "tensor_parallel": (1, 4), "both": (4, 8), "sharded": (2, 4)}


def test_digits(tmp_path: Path) -> None:
    runs = [ALONE, *(RunOf(strategy, ranks) for strategy, counts in DIGITS.items() for ranks in counts)]
    found = figures(example("digits", epochs_10="steps = 26"), runs, tmp_path)
    compare(found, 1e-5)
    for figure in found.values():
        assert farthest(found[ALONE], figure, "accuracy") <= 1e-6
        for mine, theirs in zip(figure.evaluations, found[ALONE].evaluations, strict=True):
            assert mine["eval.loss"] == pytest.approx(theirs["eval.loss"], rel=1e-5)
            assert mine["eval.accuracy"] == pytest.approx(theirs["eval.accuracy"], abs=1e-9)


def test_digits_learns(tmp_path: Path) -> None:
    found = figures(example("digits"), [RunOf("data_parallel", 2)], tmp_path)
    assert found[RunOf("data_parallel", 2)].evaluations[-1]["eval.accuracy"] >= 0.95


def write_images(folder: Path, split: str, count: int) -> None:
    """Images and labels of the shape of MNIST's: a bright square whose place tells the label."""
    draw = random.Random(count)
    images, labels = bytearray(), bytearray()
    for _ in range(count):
        label = draw.randrange(10)
        image = bytearray(draw.randrange(60) for _ in range(28 * 28))
        for row in range(8):
            start = (2 + 14 * (label % 2) + row) * 28 + 5 * (label // 2)
            image[start : start + 5] = bytes([250] * 5)
        images += image
        labels.append(label)
    folder.mkdir(parents=True, exist_ok=True)
    head = [(0x803, count, 28, 28), (0x801, count)]
    for name, numbers, data in zip(("images-idx3", "labels-idx1"), head, (images, labels), strict=True):
        header = b"".join(n.to_bytes(4, "big") for n in numbers)
        (folder / f"{split}-{name}-ubyte.gz").write_bytes(gzip.compress(header + data))


def test_images_with_dropout(tmp_path: Path) -> None:
    write_images(tmp_path / "data" / "mnist", "train", 800)
    write_images(tmp_path / "data" / "mnist", "t10k", 200)
    runs = [ALONE, *(RunOf("ddp", ranks) for ranks in (2, 8))]
    found = figures(example("mnist_ddp", epochs_10="epochs = 2"), runs, tmp_path)
    compare(found, 1e-5)
    for figure in found.values():
        for mine, theirs in zip(figure.evaluations, found[ALONE].evaluations, strict=True):
            assert mine["eval.loss"] == pytest.approx(theirs["eval.loss"], rel=1e-5)
            assert math.isfinite(mine["eval.accuracy"])


LARGE = """\
use std.nn: Linear

dim batch = 16, d = 384, hidden = 512

model Net {
  layer up = Linear(d, hidden)
  layer down = Linear(hidden, d)
  forward(x: [batch, d]) -> [batch, d] {
    return up(x) |> relu |> down
  }
}

strategy data_parallel {
  mesh dp = auto
  split batch over dp
}

strategy microbatches {
  mesh dp = 2, mp = 2
  split batch over dp
  split hidden over mp
  microbatches 2
  bucket gradients 1MB
}

strategy out_of_order {
  mesh a = 2, b = 2
  split batch over (b, a)
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 4)
  loss = mean((model(x) - y) * (model(x) - y))
  optimizer = adamw(lr = 1e-2)
  clip = 0.5
  precision = f64
  steps = 8
}
"""


def test_large_buckets(tmp_path: Path) -> None:
    """Gradients of more than half a MB a bucket, which the ranks of a machine sum in memory that they share."""
    counts = (("data_parallel", 2), ("data_parallel", 4), ("microbatches", 4), ("out_of_order", 4))
    found = figures(LARGE, [ALONE, *(RunOf(*count) for count in counts)], tmp_path)
    compare(found, 1e-12)
    expected = load_file(found[ALONE].weights)
    for figure in found.values():
        weights = load_file(figure.weights)
        assert weights.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=1e-9, atol=1e-12)
