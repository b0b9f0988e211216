"""A call of an operator and what it means in numpy, which gives both a numpy oracle and an example for each split."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray
Fill = Callable[[tuple[int, ...]], torch.Tensor]


@dataclass
class Example:
    """`make`: how to fill operand i (default: normal numbers, or small indices)."""

    name: str
    operands: tuple[str | None, ...]
    static: dict[str, Any]
    make: dict[int, Callable[[tuple[int, ...]], Tensor]]
    constant: tuple[int, ...] = ()


@dataclass(frozen=True)
class Oracle:
    """A call (in the notation of calls.py) and its meaning. smooth: what to differentiate in place of it."""

    operator: str
    operands: tuple[str | None, ...]
    meaning: Callable[..., Array]
    static: dict[str, Any] = field(default_factory=dict)
    make: dict[int, Fill] = field(default_factory=dict)
    constant: tuple[int, ...] = ()
    smooth: Callable[..., Array] | None = None

    @property
    def example(self) -> Example:
        return Example(self.operator, self.operands, self.static, dict(self.make), self.constant)


def oracle(
    name: str,
    *operands: str | None,
    means: Callable[..., Array],
    make: dict[int, Fill] | None = None,
    constant: tuple[int, ...] = (),
    smooth: Callable[..., Array] | None = None,
    **static: Any,
) -> Oracle:
    return Oracle(name, operands, means, static, make or {}, constant, smooth)


def positive(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.5


def below(size: int) -> Callable[[tuple[int, ...]], Tensor]:
    return lambda shape: torch.randint(0, size, shape)


def ties(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(0, 3, shape).double()


def truth(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape) > 0.5


def _key() -> int:
    return int.from_bytes(blake2b(b"0\x00net.x\x000\x000", digest_size=8).digest(), "little")


def random_word(index: int, lane: int = 0) -> int:
    """splitmix64 (Steele, Lea and Flood, 2014) at an index, keyed by seed 0, path net.x, call 0, step 0."""
    word = 1 << 64
    x = (_key() + lane * 0xD1B54A32D192ED03 + (index + 1) * 0x9E3779B97F4A7C15) % word
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % word
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % word
    return x ^ (x >> 31)


def drawn(index: int) -> float:
    """A number of 24 bits."""
    return (random_word(index) >> 40) / (1 << 24)


def falls_out(place: tuple[int, ...], shape: tuple[int, ...], p: float) -> bool:
    """Whether an element does: of two in a row, the first has the lower half of Lea's mix, the second the upper."""
    row = 0
    for at, size in zip(place[:-1], shape[:-1], strict=True):
        row = row * size + at
    x = _key() % (1 << 62) + (row * math.ceil(shape[-1] / 2) + place[-1] // 2) * 0x9E3779B9
    for _ in range(2):
        x = (x ^ (x >> 32)) * 0xDABA0B6EB09322E3 % (1 << 64)
    half = x >> 32 if place[-1] % 2 else x % (1 << 32)
    return (half ^ (1 << 31)) < p * (1 << 32)
