"""How far the curves of digits and mnist_ddp on several ranks part from one rank's within 100 steps, as a table.

    python -m tests.end_to_end.parting [--steps 100] [--only digits,mnist_ddp] [--seeds 5]

Beside each, what plain torch does in one process, without a line of ours: the same model and data, once whole and once
with its sums taken in as many parts as there are ranks. In float32 a cell says of how many seeds the curves stay
together, and the most that any parts. Where a sum's last bit decides whether a unit near 0 passes relu, the curves part
from there on, by hand as here; in float64 none does.
MNIST is read from ../shared/programs/data; where it is not there, its lines are left out.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.end_to_end.curves import ROOT, RunOf, figures

DATA = ROOT.parent / "shared" / "programs"
LIMIT = 1e-5
COUNTS = (2, 4, 8)
Curve = list[float]


def ours(program: str, strategies: Sequence[str], steps: int, precision: str, seed: int) -> dict[RunOf, Curve]:
    """The losses of an example under each strategy, on one rank first."""
    text = (ROOT / "examples" / f"{program}.shard").read_text()
    text = text.replace("epochs = 10", f"steps = {steps}\n  seed = {seed}\n  precision = {precision}")
    assert f"steps = {steps}" in text
    runs = [RunOf(strategies[0], 1), *(RunOf(s, n) for s in strategies for n in COUNTS)]
    with tempfile.TemporaryDirectory() as folder:
        return {run: each.curve() for run, each in figures(text, runs, Path(folder), DATA).items()}


@cache
def images() -> tuple[Tensor, Tensor]:
    """The images of MNIST as [n, 1, 28, 28], and their labels."""
    with gzip.open(DATA / "data" / "mnist" / "train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(DATA / "data" / "mnist" / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return torch.tensor(pixels / 255.0 - 0.1307).div(0.3081), torch.tensor(labels).long()


@cache
def digits_table() -> tuple[Tensor, Tensor]:
    """The digits that the package ships, as [n, 64] from 0 to 1, and their labels."""
    with gzip.open(DATA / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return torch.tensor(table[:, :64] / 16), torch.tensor(table[:, 64]).long()


def by_hand(
    parameters: list[Tensor], batches: Iterator[tuple[Tensor, ...]], loss: Callable[..., Tensor], parts: int,
    lr: float, momentum: float,
) -> Curve:  # fmt: skip
    """Trains with torch.optim.SGD, the gradient of a batch being the sum of those of its parts."""
    parameters = [p.detach().clone().requires_grad_() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        total = 0.0
        for pieces in zip(*(x.chunk(parts) for x in batch), strict=True):
            share = loss(parameters, *pieces) / parts
            share.backward()
            total += share.item()
        optimizer.step()
        losses.append(total)
    return losses


def _uniform(generator: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    bound = float(np.prod(shape[1:] or shape)) ** -0.5
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 * bound - bound).to(dtype)


def mnist_by_hand(parts: int, steps: int, dtype: torch.dtype, seed: int) -> Curve:
    """The classifier of mnist_ddp.shard; the masks of its dropouts are those of the whole batch, cut as it is."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((10, 1, 5, 5), (10,), (20, 10, 5, 5), (20,), (50, 320), (50,), (10, 50), (10,))
    parameters = [_uniform(generator, dtype, *shape) for shape in shapes]
    pixels, labels = images()

    def batches() -> Iterator[tuple[Tensor, ...]]:
        for at in range(0, 128 * steps, 128):
            masks = [(torch.rand(128, n, generator=generator) < 0.5).to(dtype) * 2 for n in (20, 50)]
            yield pixels[at : at + 128].to(dtype), labels[at : at + 128], *masks

    def loss(p: list[Tensor], x: Tensor, label: Tensor, channels: Tensor, units: Tensor) -> Tensor:
        a = F.max_pool2d(F.conv2d(x, p[0], p[1]), 2).relu()
        b = F.max_pool2d(F.conv2d(a, p[2], p[3]) * channels[:, :, None, None], 2).relu()
        c = F.linear(b.flatten(1), p[4], p[5]).relu() * units
        return F.nll_loss(F.log_softmax(F.linear(c, p[6], p[7]), 1), label)

    return by_hand(parameters, batches(), loss, parts, 0.01, 0.5)


def digits_by_hand(parts: int, steps: int, dtype: torch.dtype, seed: int, tensor: bool) -> Curve:
    """The classifier of digits.shard; `tensor`: the hidden units are cut in parts, not the batch."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [_uniform(generator, dtype, *shape) for shape in ((128, 64), (128,), (10, 128), (10,))]
    pixels, labels = digits_table()

    def batches() -> Iterator[tuple[Tensor, ...]]:
        for step in range(steps):
            at = 64 * step % (len(pixels) - 64)
            yield pixels[at : at + 64].to(dtype), labels[at : at + 64]

    def loss(p: list[Tensor], x: Tensor, label: Tensor) -> Tensor:
        cut = [w.chunk(parts if tensor else 1, dim) for w, dim in ((p[0], 0), (p[1], 0), (p[2], 1))]
        pieces = zip(*cut, strict=True)
        scores = sum(F.linear(F.linear(x, up, bias).relu(), down) for up, bias, down in pieces)
        return F.cross_entropy(scores + p[3], label)

    return by_hand(parameters, batches(), loss, 1 if tensor else parts, 0.1, 0.9)


def parted(pairs: Sequence[tuple[Curve, Curve]]) -> str:
    """Of how many pairs the curves stay together, and the largest distance of all."""
    most = [max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in pairs]
    return f"{sum(m <= LIMIT for m in most)} of {len(most)}, {max(most):.1e}"


@cache
def plain(program: str, parts: int, steps: int, dtype: torch.dtype, seed: int, tensor: bool) -> Curve:
    if program == "mnist_ddp":
        return mnist_by_hand(parts, steps, dtype, seed)
    return digits_by_hand(parts, steps, dtype, seed, tensor)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="digits,mnist_ddp")
    given = parser.parse_args()
    torch.set_num_threads(1)
    strategies = {"digits": ["data_parallel", "tensor_parallel", "both", "sharded"], "mnist_ddp": ["ddp"]}
    heads = " ".join(f"{h:18}" for h in ("here, f32", "here, f64", "by hand, f32", "by hand, f64"))
    print(f"{'program':10} {'strategy':16} ranks  {heads}")
    for program in given.only.split(","):
        if program == "mnist_ddp" and not (DATA / "data" / "mnist").is_dir():
            print("mnist_ddp: the images in ../shared/programs/data are not there")
            continue
        names = strategies[program]
        alone = RunOf(names[0], 1)
        single = [ours(program, names, given.steps, "f32", seed) for seed in range(given.seeds)]
        double = [ours(program, names, given.steps, "f64", 0)]
        for run in (r for r in single[0] if r != alone):
            cells = [parted([(curves[run], curves[alone]) for curves in of]) for of in (single, double)]
            tensor = run.strategy == "tensor_parallel"
            for dtype, seeds in ((torch.float32, given.seeds), (torch.float64, 1)):
                of = [[plain(program, n, given.steps, dtype, s, tensor) for n in (run.ranks, 1)] for s in range(seeds)]
                cells.append(parted([(a, b) for a, b in of]))
            print(f"{program:10} {run.strategy:16} {run.ranks:5}  " + " ".join(f"{c:18}" for c in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
