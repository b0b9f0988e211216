"""The source `random`: examples that are a function of (seed, field, example number): uniform in
[0, 1), or whole numbers.

The numbers are those of random.py (splitmix64 of the global index)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from shardlang.facts.dtypes import DTYPES
from shardlang.runtime import random
from shardlang.runtime.data.dataset import Dataset
from shardlang.runtime.program import BatchSource, Extent, SourceField


def bits(key: int, index: np.ndarray) -> np.ndarray:
    """uint64: 64 random bits per int64 index, as random.bits draws them."""
    return np.asarray(random.bits(key, torch.from_numpy(index)).numpy()).view(np.uint64)


class RandomExamples:
    """`length` random examples; nothing is stored."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed = length, seed
        self.notes: list[str] = []

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        index = examples
        for size, start, length in zip(field.shape[1:], block.offsets[1:], block.shape[1:], strict=True):
            index = index[..., None] * size + np.arange(start, start + length)
        drawn = bits(random.seeded_key(self.seed, f"data.{field.name}"), index)
        if not DTYPES[field.dtype].floating:
            bound = 2 if field.bound is None else field.bound
            return ((drawn >> np.uint64(11)).astype(np.float64) * (2.0**-53 * bound)).astype(np.int64)
        return (drawn >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def read(source: BatchSource, base: Path, like: Dataset | None = None) -> RandomExamples:
    """random(field: type, ..., batches = 4, seed = 1)."""
    return RandomExamples(int(source.arguments.get("batches", 1)) * source.batch, int(source.arguments.get("seed", 0)))
