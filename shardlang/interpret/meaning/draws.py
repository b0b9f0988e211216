"""The language's random numbers, written a second time: numpy alone, from their definition.

A number is a pure function of (seed, path, number of the call, step, index in the whole value): the
key is the first eight bytes of blake2b of `seed\\0path\\0call\\0step`, the generator splitmix64
(Steele, Lea and Flood, 2014) at key + (index + 1) * golden ratio, all modulo 2**64. Masks have bits
of their own (`kept`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_LANE = 0xD1B54A32D192ED03
_WORD = 1 << 64
Sizes = Sequence[int] | None


def key_of(seed: int, path: str, call: int = 0, step: int = 0) -> int:
    """The 64-bit key of one random operator (or initial value) in one step."""
    digest = blake2b(f"{seed}\0{path}\0{call}\0{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def words(key: int, index: np.ndarray, lane: int = 0) -> np.ndarray:
    """uint64 of the shape of `index` (uint64): 64 random bits an index; lanes are independent."""
    shape, index = index.shape, index.reshape(-1)  # numpy warns when a scalar wraps around, and not when an array does
    x = np.uint64((key + lane * _LANE + _GOLDEN) % _WORD) + index * np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).reshape(shape)


def indices(whole: Sequence[int], starts: Sizes = None, shape: Sizes = None) -> np.ndarray:
    """uint64 [*shape]: the row-major index in `whole` of each element of a block at `starts`, by
    default of all."""
    starts, shape = starts or [0] * len(whole), whole if shape is None else shape
    lines = [np.arange(start, start + size, dtype=np.uint64) for start, size in zip(starts, shape, strict=True)]
    index = np.zeros((), dtype=np.uint64)
    for line, size in zip(lines, whole, strict=True):
        index = index[..., None] * np.uint64(size) + line
    return index


def uniform(key: int, whole: Sequence[int], starts: Sizes = None, shape: Sizes = None) -> Tensor:
    """float32 in [0, 1): a block of a value of shape `whole` (by default all); 24 bits a number."""
    index = indices(whole, starts, shape)
    return torch.from_numpy(np.asarray((words(key, index) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)))


def normal(key: int, whole: Sequence[int], starts: Sizes = None, shape: Sizes = None) -> Tensor:
    """float32, mean 0 and variance 1, by Box and Muller's transform of 53 bits each in float64."""
    index = indices(whole, starts, shape)
    radius = 1.0 - (words(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    angle = (words(key, index, 1) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    drawn = np.sqrt(-2.0 * np.log(radius)) * np.cos(angle * (2.0 * math.pi))
    return torch.from_numpy(np.asarray(drawn.astype(np.float32)))


def kept(key: int, p: float, whole: Sequence[int], starts: Sizes = None, shape: Sizes = None) -> Tensor:
    """bool: a block of a value of shape `whole` (by default all); whether 32 bits, the first of
    them turned round, are p or more as a part of 1. Two neighbours of a row have the halves of one
    word: the first has the lower."""
    if not whole:
        return kept(key, p, (1,)).view(())
    starts, shape = starts or [0] * len(whole), whole if shape is None else shape
    column = np.arange(starts[-1], starts[-1] + shape[-1], dtype=np.uint64)
    row = indices(whole[:-1], starts[:-1], shape[:-1])[..., None]
    x = row * np.uint64((whole[-1] + 1) // 2) + column // np.uint64(2)
    x = np.uint64(key % (1 << 62)) + x * np.uint64(_GOLDEN >> 32)
    for _ in range(2):
        x = (x ^ (x >> np.uint64(32))) * np.uint64(0xDABA0B6EB09322E3)
    half = np.where(column % np.uint64(2) == 0, x, x >> np.uint64(32)) + np.uint64(1 << 31)
    return torch.from_numpy(np.asarray(half % np.uint64(1 << 32) >= p * 2.0**32))
