"""Ranks as threads of one process: a mesh whose groups' sums and maxima meet at barriers.

Gives the part of `runtime.mesh` that collectives without data movement use: `size`, `index`, and of
`handle` what rounds.py asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = 60


class Meeting:
    """A meeting of the members of one group: a barrier, and a place for each member's tensor."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.places: list[torch.Tensor | None] = [None] * size


class Done:
    def wait(self) -> None:
        return None


class Handle:
    def __init__(self, meeting: Meeting, index: int) -> None:
        self.meeting, self.index = meeting, index

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Done:
        """In place, as torch's process groups do it; every member reduces in the same order."""
        (tensor,) = tensors
        self.meeting.places[self.index] = tensor.clone()
        self.meeting.barrier.wait(TIMEOUT)
        stack = torch.stack([p for p in self.meeting.places if p is not None])
        if options.reduceOp == dist.ReduceOp.SUM:
            result = stack.sum(0)
        else:
            result = stack.amax(0) if options.reduceOp == dist.ReduceOp.MAX else stack.amin(0)
        self.meeting.barrier.wait(TIMEOUT)
        tensor.copy_(result)
        return Done()

    def alltoall_base(self, result: torch.Tensor, sent: torch.Tensor, taken: list[int], given: list[int]) -> Done:
        """Part i of what a member sends goes to member i; `given` and `taken`: the parts' lengths,
        else all alike."""
        self.meeting.places[self.index] = sent.clone()
        self.meeting.barrier.wait(TIMEOUT)
        parts = [
            place.split(given)[self.index] if given else place.chunk(len(self.meeting.places))[self.index]
            for place in self.meeting.places
            if place is not None
        ]
        self.meeting.barrier.wait(TIMEOUT)
        result.copy_(torch.cat(parts))
        return Done()


class ThreadGroup:
    def __init__(self, size: int, index: int, meeting: Meeting) -> None:
        self.size, self.index, self.slot = size, index, index
        self.axes, self.ranks = (), tuple(range(size))
        self._handle = Handle(meeting, index)

    def handle(self, _: torch.Tensor) -> Handle:
        return self._handle


class Ranks:
    """`sizes`: axis -> size, outermost first. `coordinates[rank]`: axis -> coordinate."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.coordinates: list[dict[str, int]] = [{}]
        for axis, size in sizes.items():
            self.coordinates = [{**c, axis: i} for c in self.coordinates for i in range(size)]
        self._meetings: dict[object, Meeting] = {}
        self._lock = threading.Lock()

    def group(self, rank: int, axes: tuple[str, ...]) -> ThreadGroup:
        """The group of a rank over `axes`, first is major."""
        mine = self.coordinates[rank]
        size, index = 1, 0
        for axis in axes:
            size, index = size * self.sizes[axis], index * self.sizes[axis] + mine[axis]
        key = (axes, tuple((a, i) for a, i in mine.items() if a not in axes))
        with self._lock:
            meeting = self._meetings.setdefault(key, Meeting(size))
        return ThreadGroup(size, index, meeting)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """`work(rank)` on all ranks at once; the first failure is raised here."""
        results: list[Any] = [None] * len(self.coordinates)
        failures: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except BaseException as failure:
                failures.append(failure)
                for meeting in self._meetings.values():
                    meeting.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        real = [f for f in failures if not isinstance(f, threading.BrokenBarrierError)]
        if failures:
            raise (real or failures)[0]
        return results


class MeshView:
    """`mesh.a`, `mesh["a", "b"]` as one rank's emitted text reads them."""

    def __init__(self, ranks: Ranks, rank: int) -> None:
        self._ranks, self._rank = ranks, rank

    def __getattr__(self, axis: str) -> ThreadGroup:
        return self._ranks.group(self._rank, (axis,))

    def __getitem__(self, axes: tuple[str, ...]) -> ThreadGroup:
        return self._ranks.group(self._rank, axes)
