"""Numbers of one element type -> another, rounded as torch rounds them.

Types have safetensors' names. numpy lacks bf16: its bits are kept as u16."""

from __future__ import annotations

import numpy as np

from shardlang.checkpoints.parts import STORED
from shardlang.errors import RunError
from shardlang.facts.dtypes import DTYPES

FLOATS = tuple(name.upper() for name, facts in DTYPES.items() if facts.floating)


def convertible(given: str, wanted: str) -> bool:
    return given == wanted or (given in FLOATS and wanted in FLOATS)


def converted(numbers: np.ndarray, given: str, wanted: str, name: str) -> np.ndarray:
    """Numbers of `name` in another type. RunError SH609 where a finite one would become
    infinite."""
    if given == wanted:
        return numbers
    wide = _wide(numbers, given)
    with np.errstate(over="ignore"):
        found = _bf16(wide) if wanted == "BF16" else wide.astype(STORED[wanted])
        lost = np.isfinite(wide) & ~np.isfinite(_wide(found, wanted))
    if lost.any():
        fact = f"`{name}` has {wide[lost][0]:g}, which {wanted.lower()} cannot hold"
        raise RunError("SH609", fact, help="scale it, or take a model whose tensors are wider")
    return found


def _wide(numbers: np.ndarray, given: str) -> np.ndarray:
    """The same numbers in a type that numpy has."""
    return (numbers.astype("<u4") << 16).view("<f4") if given == "BF16" else numbers


def _bf16(numbers: np.ndarray) -> np.ndarray:
    """The bits of bf16 that are nearest, half way the even ones."""
    bits = np.ascontiguousarray(numbers, "<f4").view("<u4")
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2")
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), rounded)
