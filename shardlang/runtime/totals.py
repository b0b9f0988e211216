"""Sums numbers that are pending over different axes in one small all-reduce.

A number pending over some of the axes and identical over the others is kept on the others' first member, so that one
sum over all the axes is right for every number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime import wire
from shardlang.runtime.mesh import Mesh


class Totals:
    """name -> axes over which its numbers are pending, and from that one reduction for all."""

    def __init__(self, mesh: Mesh, pending: Mapping[str, Sequence[str]]) -> None:
        self.names = list(pending)
        axes = tuple(axis for axis in mesh if any(axis in p for p in pending.values()))
        self.group = mesh[axes]
        self.kept = {name: mesh[tuple(a for a in axes if a not in p)].index == 0 for name, p in pending.items()}

    def start(self, values: Mapping[str, Tensor]) -> Pending:
        """Starts the sum of numbers (or of vectors of one length) in float64; every rank must call it."""
        parts = [
            values[name].detach().double() if self.kept[name] else torch.zeros_like(values[name], dtype=torch.float64)
            for name in self.names
        ]
        vector = torch.stack(parts) if parts else torch.zeros(0, dtype=torch.float64)
        total = wire.begin_reduce(vector, self.group) if self.group.size > 1 else wire.Ready(vector)
        return Pending(self.names, total)


class Pending:
    """A sum on its way."""

    def __init__(self, names: list[str], total: wire.Ready) -> None:
        self.names, self.total = names, total

    def wait(self) -> dict[str, Any]:
        """name -> the sum, a float (a list of floats of a vector)."""
        return dict(zip(self.names, self.total.wait().tolist(), strict=True))
