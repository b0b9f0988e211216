"""Indices that a program computes -> nothing, or the error that one of them is no place of its dim.

Looked at before ranks look anything up, so that all strategies, one device included, refuse the
same in the same words. On a device the host does not wait for it: the device ends the program, and
the numbers that did it are then in the host's memory."""

from __future__ import annotations

import torch
from torch import Tensor

from shardlang.errors import RunError, outside
from shardlang.runtime.comm.traced import moves
from shardlang.runtime.device import kind_of

__all__ = ["within"]

# What `outside` is given, but for the index.
_Place = tuple[int, str, str, str, int, int | None]
# The least and the greatest index of the last call at each place, from a device.
_ends: dict[_Place, Tensor] = {}


@moves(lambda index, *place: (0,))
def within(
    index: Tensor, size: int, what: str, dim: str, file: str, line: int, ignored: int | None = None
) -> Tensor:  # fmt: skip
    """RunError SH519 for an index that is not from 0 to size - 1, nor `ignored`. The others say
    what it is an index of, and where. A tensor of no numbers, for compilers."""
    place = size, what, dim, file, line, ignored
    if index.numel() and kind_of(index.device).apart:
        _look_later(index, place)
    elif index.numel():
        least, most = index.aminmax()
        if least < 0 or most >= size:
            beyond = index[((index < 0) | (index >= size)) & (True if ignored is None else index != ignored)]
            if beyond.numel():
                raise outside(int(beyond[0]), *place)
    return index.new_empty(0)


def _look_later(index: Tensor, place: _Place) -> None:
    """The device compares, after it has sent the host what it compares."""
    size, what, _, file, line, ignored = place
    kept = index if ignored is None else index.where(index != ignored, 0)
    ends = torch.stack(kept.aminmax())
    if place not in _ends:
        _ends[place] = kind_of(index.device).host_memory(ends).zero_()
    _ends[place].copy_(ends, non_blocking=True)
    said = f"an index of `{what}` is not from 0 to {size - 1} ({file}:{line})"
    torch._assert_async(((ends >= 0) & (ends < size)).all(), said)


def met() -> RunError | None:
    """The error of an index because of which a device has ended the program; None without one."""
    for place, ends in _ends.items():
        for index in ends.tolist():
            if not 0 <= index < place[0]:
                return outside(index, *place)
    return None
