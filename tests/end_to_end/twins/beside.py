"""A twin -> what its program and it report of several steps in float64, from the twin's weights, on the digits.

A twin has the parameters of its example under their paths, and one step of training written as a loop in torch would
have it.
"""

from __future__ import annotations

import gzip
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from shardlang.sources.resources import folder
from tests.end_to_end.curves import ROOT

STEPS, BATCH = 4, 64


class Twin(torch.nn.Module, ABC):
    """What the tests call of a twin."""

    optimizer: torch.optim.Optimizer

    @abstractmethod
    def step(self, number: int, image: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
        """One step of training, from 1; the figures that the example reports of it."""


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The training set: all but every fifth example, in the order of the file; pixels of 0..1."""
    with gzip.open(folder("data") / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",")
    rows = rows[np.arange(len(rows)) % 5 > 0]
    return torch.from_numpy(rows[:, :64] / 16), torch.from_numpy(rows[:, 64]).long()


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Those of the first epoch with seed 0."""
    image, label = digits()
    order = np.random.Generator(np.random.Philox(key=[0, 1])).permutation(len(image))
    for at in range(STEPS):
        rows = torch.from_numpy(order[at * BATCH : (at + 1) * BATCH])
        yield image[rows], label[rows]


def program(name: str, twin: Twin, where: Path) -> str:
    """The example in float64 for a few steps, from the twin's weights, which go to `where`."""
    save_file({path: weight.detach() for path, weight in twin.state_dict().items()}, where / "w.safetensors")
    text = (ROOT / "examples" / f"{name}.shard").read_text("utf-8")
    text = re.sub(r"^  eval = .*\n", "", text, flags=re.MULTILINE)
    rest = f'  steps = {STEPS}\n  precision = f64\n  init = safetensors("w.safetensors")\n'
    text, changed = re.subn(r"^  epochs = .*\n", rest, text, flags=re.MULTILINE)
    assert changed == 1
    return text


def trained(twin: Twin) -> list[dict[str, float]]:
    """What the twin reports of each step."""
    return [twin.step(number, image, label) for number, (image, label) in enumerate(batches(), 1)]
