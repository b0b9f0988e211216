"""A tensor -> the first of its numbers that is none, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def broken(x: Tensor, infinite: bool = False) -> tuple[int, ...] | None:
    """The index of the first number that is not finite; None where all are. infinite: numbers may
    be infinite."""
    # The sum is one quick pass that keeps nothing; a closer look is due where it is not finite.
    if not x.is_floating_point() or bool(x.sum().isfinite()):
        return None
    found = (x.isnan() if infinite else ~x.isfinite()).nonzero()
    return tuple(int(i) for i in found[0]) if len(found) else None


def shown(x: Tensor, at: Sequence[int], offsets: Sequence[int] = ()) -> str:
    """`is nan at [2, 1]`: the number at an index of a part that begins at `offsets` in the
    whole."""
    index = [i + start for i, start in zip(at, offsets or (0,) * len(at), strict=True)]
    return f"is {x[tuple(at)].item()}" + (f" at {index}" if index else "")
