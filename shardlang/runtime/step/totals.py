"""Sums numbers that are pending over different axes in one small all-reduce, those of microbatches
before it.

A number pending over some of the axes and identical over the others is kept on the others' first
member, so that one sum over all the axes is right for every number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shardlang.facts.figures import BESIDE, GRAD_NORM, is_told
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import RankMesh, world
from shardlang.runtime.comm.record import about
from shardlang.runtime.device import kind_of
from shardlang.runtime.program import RunProgram

# Batches whose numbers are summed at once, at most.
_AT_ONCE = 64


class Totals:
    """name -> axes over which its numbers are pending, and from that one reduction for all.

    shape: of each. stages: the axis of pipeline stages ("": none), along which each number is known
    at one coordinate and afterwards at all. listed: names beside, which are not summed
    (`BatchTotals`). pause: seconds for which numbers may be held back, to
    sum those of several batches at once; all ranks then take part in a sum, and agree. asks: on the
    first rank, whether it wants more to be told of each batch; each: what it has said."""

    def __init__(
        self, mesh: RankMesh, pending: Mapping[str, Sequence[str]], shape: tuple[int, ...] = (), stages: str = "",
        pause: float = 0.0, listed: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.names, self.shape, self.pause = list(pending), shape, pause
        axes = tuple(axis for axis in mesh if pause or axis == stages or any(axis in p for p in pending.values()))
        self.group = mesh[axes]
        once = {name: tuple(a for a in axes if a not in p and a != stages) for name, p in pending.items()}
        self.kept = {name: mesh[others].index == 0 for name, others in once.items()}
        self.mesh, self.pending, self.listed = mesh, pending, frozenset(listed)
        self._open, self.every, self._since = Sum(self), 1, time.perf_counter()
        self.asks = self.each = False

    def parts(self) -> BatchTotals:
        """To put together a batch's numbers from those of its microbatches."""
        return BatchTotals({name for name, axes in self.pending.items() if self.mesh._time in axes}, self.listed)

    def start(self, values: Mapping[str, Tensor]) -> Pending:
        """Starts the sum in float64, now or with that of a later batch; every rank must call it,
        with the numbers that it knows."""
        self._open.add([values[n].detach() if self.kept[n] and n in values else None for n in self.names])
        pending = Pending(self._open, len(self._open.rows) - 1)
        if len(self._open.rows) >= self.every:
            self.begin()
        return pending

    @property
    def held(self) -> int:
        """How many batches are held back."""
        return len(self._open.rows)

    def begin(self) -> None:
        """Starts what has been held back; every rank must call it."""
        begun, self._open = self._open, Sum(self)
        begun.begin(self._pace(len(begun.rows)))

    def _pace(self, batches: int) -> list[float]:
        """How many batches to sum at once from now on, and what is asked. Ranks must agree, and
        their clocks do not: the first says it, as further numbers of the sum."""
        if not self.pause:
            return []
        now = time.perf_counter()
        each, self._since = (now - self._since) / batches, now
        if self.group.index:
            return [0.0, 0.0]
        return [max(1.0, min(_AT_ONCE, self.pause // max(each, 1e-9))), float(self.asks)]


class Sum:
    """The numbers of some batches, a row each, and their sum once it has begun."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.rows: list[Tensor] = []
        self.total: Callable[[], Tensor] | None = None
        self.result: list[Any] | None = None

    def add(self, values: Sequence[Tensor | None]) -> None:
        """Takes in the numbers of a batch; None: one that is not known here. They are copied, as a
        number may be a parameter itself, which will have changed when the sum begins."""
        known = [self._number(0.0) if value is None else value for value in values]
        self.rows.append(torch.stack(known) if known else self._number(0.0).unsqueeze(0)[:0])

    def _number(self, value: float) -> Tensor:
        return torch.full(self.totals.shape, value, dtype=torch.float64, device=world.device)

    def begin(self, pace: Sequence[float]) -> None:
        """Starts it, with `pace` behind the numbers."""
        group = self.totals.group
        vector = torch.cat([*self.rows, *[self._number(number).unsqueeze(0) for number in pace]]).double()
        with about(b"figures"):
            total = (
                primitives.begin_reduce(vector, group, own=True) if group.size > 1 else primitives.AsyncResult(vector)
            )
        self.total = kind_of(vector.device).fetched(total.wait)

    def wait(self, row: int) -> list[Any]:
        """The sums of one batch."""
        if self.total is None:
            self.totals.begin()
        assert self.total is not None
        count = len(self.totals.names)
        if self.result is None:
            self.result = self.total().tolist() if count else []
            every, each = self.result[count * len(self.rows) :] or (1, 0)
            self.totals.every, self.totals.each = int(every), bool(each)
        return self.result[count * row : count * (row + 1)]


class BatchTotals:
    """The numbers of one batch: added up where they are pending over its microbatches, else those
    of the first.

    summed: the names of the first kind; None: all are. listed: those of which each microbatch's
    stays, in a list."""

    def __init__(self, summed: Set[str] | None = None, listed: Set[str] = frozenset()) -> None:
        self.summed, self.listed = summed, listed
        self.values: dict[str, Any] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Takes in the numbers of the current microbatch."""
        for name, value in values.items():
            if name in self.listed:
                self.values.setdefault(name, []).append(value)
            elif not isinstance(value, Tensor):
                self.values.setdefault(name, value)
            elif name not in self.values:
                self.values[name] = value.detach()
            elif self.summed is None or name in self.summed:
                self.values[name] = self.values[name] + value.detach()


class Pending(NamedTuple):
    """A batch's sum on its way, or held back yet."""

    sum: Sum
    row: int

    def wait(self) -> dict[str, Any]:
        """name -> the sum, a float or list. Starts it if needed: every rank must call it."""
        return dict(zip(self.sum.totals.names, self.sum.wait(self.row), strict=True))


class Waiting(NamedTuple):
    """A step whose figures are waited for. moments: from which to which it took. more: figures that
    are known. norm: waits for that of its gradients, where it is told. shown: from all of them to
    those that are told."""

    step: int
    epoch: int
    moments: tuple[Any, Any]
    figures: Pending
    more: Mapping[str, float]
    norm: Callable[[], Tensor] | None
    shown: Callable[[Mapping[str, float]], dict[str, float]] = dict

    def wait(self) -> tuple[dict[str, Any], float]:
        """All figures of the step, and the norm (0 where it is not told), which is one of them
        where it is a number."""
        norm = 0.0 if self.norm is None else float(self.norm())
        told = {GRAD_NORM: norm} if self.norm is not None and math.isfinite(norm) else {}
        return self.shown({**self.figures.wait(), **self.more, **told}), norm


def shown(program: RunProgram, figures: Mapping[str, float]) -> dict[str, float]:
    """The figures that are told, with the metrics that are made of them. A figure that a metric
    waits for and that is no number makes it none either."""
    found = {name: value for name, value in figures.items() if is_told(name)}
    if program.late is None:
        return found
    given = [torch.tensor(figures.get(name, math.nan), dtype=torch.float64) for name in program.late_from]
    late = {name: float(value) for name, value in program.late(*given).items()}
    return {name: value for name, value in found.items() if name not in BESIDE} | late | found


class WholeSet:
    """The numbers of an evaluation: sums over its batches, and all items if `joined`."""

    def __init__(self, totals: Totals, joined: Sequence[str]) -> None:
        self.over_ranks = totals
        self.sums: dict[str, Tensor] = {}
        self.items: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in joined}

    def add(self, values: Mapping[str, Any]) -> None:
        """Takes in what a batch gave."""
        for name, value in values.items():
            if name in self.items:
                self.items[name].append(value)
            else:
                self.sums[name] = self.sums[name] + value if name in self.sums else value.double()

    def totals(self) -> dict[str, Any]:
        """name -> the sum over batches and ranks, float64, or all items; all ranks must call it."""
        found = self.over_ranks.start(self.sums).wait()
        joined = {name: tuple(map(torch.cat, zip(*parts, strict=True))) for name, parts in self.items.items()}
        return {**{name: torch.tensor(total, dtype=torch.float64) for name, total in found.items()}, **joined}
