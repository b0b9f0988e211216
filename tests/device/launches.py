"""Prints, as JSON, how many kernels the pretended device is given by dropout and by a bucket of
ZeRO, and whether its numbers are the CPU's. In a process of its own: one that has had a device
cannot fork ranks. `python -m tests.device.launches`."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from shardlang.runtime.functions.lookups import dropout
from shardlang.runtime.state.zero import packed
from tests.device.pretended import DEVICE, Running, counts


def _launched() -> int:
    """Kernels since the last call."""
    found = counts.kernels.total()
    counts.kernels.clear()
    return found


def dropped(shape: tuple[int, int], part: bool) -> dict[str, Any]:
    """part: a rank has the second half of the last dim."""
    whole, offsets = ((shape[0], 2 * shape[1]), (0, shape[1])) if part else (shape, (0, 0))
    x = torch.ones(shape)
    with Running():
        there = x.to(DEVICE)
        _launched()
        there = dropout(there, 0.3, 7, whole, offsets)
        kernels = _launched()
        return {"kernels": kernels, "same": torch.equal(there.cpu(), dropout(x, 0.3, 7, whole, offsets))}


def packs(ranks: int) -> dict[str, Any]:
    """Gradients of three parameters."""

    class Members:
        size, in_order = ranks, True

    parts = [torch.ones(9, 4), torch.ones(5), torch.ones(())]
    with Running():
        moved = [part.to(DEVICE) for part in parts]
        _launched()
        there = packed(moved, Members())  # type: ignore[arg-type]
        kernels = _launched()
        return {"kernels": kernels, "same": torch.equal(there.cpu(), packed(parts, Members()))}  # type: ignore[arg-type]


def main() -> int:
    found = {
        "dropout": [dropped(shape, part) for shape in ((3, 5), (700, 300)) for part in (False, True)],
        "bucket": [packs(ranks) for ranks in (2, 64)],
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
