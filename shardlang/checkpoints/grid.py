"""The parts of a tensor -> the grid that they are, if they are one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

Place = tuple[int, ...]


def grid(shape: Sequence[int], parts: Mapping[Place, Place]) -> list[list[int]] | None:
    """The lengths along each dim, where parts (lengths by offsets) are a grid, in any order, that
    is all of a tensor; else None."""
    starts = [sorted({offsets[dim] for offsets in parts}) for dim in range(len(shape))]
    lengths = [
        [last - first for first, last in itertools.pairwise([*each, size])]
        for each, size in zip(starts, shape, strict=True)
    ]
    if any(each[:1] != [0] for each in starts):
        return None
    count = 1
    for each in starts:
        count *= len(each)
    if count != len(parts):
        return None
    due = zip(itertools.product(*starts), itertools.product(*lengths), strict=True)
    return lengths if all(parts.get(at) == size for at, size in due) else None
