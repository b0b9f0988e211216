"""Sums numbers that are pending over different axes in one small all-reduce, those of microbatches before it.

A number pending over some of the axes and identical over the others is kept on the others' first member, so that one
sum over all the axes is right for every number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime import wire
from shardlang.runtime.mesh import Mesh, world


class Totals:
    """name -> axes over which its numbers are pending, and from that one reduction for all.

    shape: of each. stages: the axis of pipeline stages ("": none), along which each number is known at one coordinate
    and afterwards at all.
    """

    def __init__(
        self, mesh: Mesh, pending: Mapping[str, Sequence[str]], shape: tuple[int, ...] = (), stages: str = ""
    ) -> None:
        self.names, self.shape = list(pending), shape
        axes = tuple(axis for axis in mesh if axis == stages or any(axis in p for p in pending.values()))
        self.group = mesh[axes]
        once = {name: tuple(a for a in axes if a not in p and a != stages) for name, p in pending.items()}
        self.kept = {name: mesh[others].index == 0 for name, others in once.items()}
        self.mesh, self.pending = mesh, pending

    def parts(self) -> Parts:
        """To put together a batch's numbers from those of its microbatches."""
        return Parts({name for name, axes in self.pending.items() if self.mesh._time in axes})

    def start(self, values: Mapping[str, Tensor]) -> Pending:
        """Starts the sum in float64; every rank must call it, with the numbers that it knows."""
        nothing = torch.zeros(self.shape, dtype=torch.float64, device=world.device)
        kept = {name: values[name].detach().double() for name in self.names if self.kept[name] and name in values}
        parts = [kept.get(name, nothing) for name in self.names]
        vector = torch.stack(parts) if parts else nothing
        total = wire.begin_reduce(vector, self.group) if self.group.size > 1 else wire.Ready(vector)
        return Pending(self.names, total)


class Parts:
    """The numbers of one batch: added up where they are pending over its microbatches, else those of the first.

    summed: the names of the first kind; None: all are.
    """

    def __init__(self, summed: Set[str] | None) -> None:
        self.summed = summed
        self.values: dict[str, Tensor] = {}

    @classmethod
    def all_summed(cls) -> Parts:
        return cls(None)

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Takes in the numbers of the current microbatch."""
        for name, value in values.items():
            if name not in self.values:
                self.values[name] = value.detach()
            elif self.summed is None or name in self.summed:
                self.values[name] = self.values[name] + value.detach()


class Pending:
    """A sum on its way."""

    def __init__(self, names: list[str], total: wire.Ready) -> None:
        self.names, self.total = names, total

    def wait(self) -> dict[str, Any]:
        """name -> the sum, a float (a list of floats of a vector)."""
        total = self.total.wait().tolist() if self.names else []
        return dict(zip(self.names, total, strict=True))
