"""Sums and gathers of large vectors among ranks of one machine, in memory that all of them have
mapped.

Each member keeps its vector where the others find it. In a sum it adds up one chunk of everybody's,
and writes that chunk into everybody's. In a gather, and in a sum of which each member needs its
part alone, it reads what the others have written. Pipes carry only that all have come so far. The
memory is a file without a name, memfd_create(2), which ends with the last process that has mapped
it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm.gloo.arrivals import arrivals
from shardlang.runtime.comm.gloo.rounds import begin_all_gather, total
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.ready import AsyncResult
from shardlang.runtime.comm.record import LoggedWork, about, here, record

# From so many bytes on. Measured on 2, 4 and 8 ranks of 2 cores: below, sockets take as long or
# less; of 1 MB and more they take two to four times the processor time.
_WORTH = 524_288

_NOTHING = torch.empty(0)


class SharedVectors:
    """A vector for each member of a group, in order; this rank fills `own` before a sum."""

    def __init__(self, group: Group, vectors: list[Tensor]) -> None:
        self.group, self.vectors = group, vectors
        self.own = vectors[group.slot]

    def begin_sum(self) -> SharedSum:
        """Starts the sum over the group, into `own`, which nobody may touch until it is there."""
        return SharedSum(self)


class SharedSum(AsyncResult):
    """A sum on its way: all have filled their vectors, then each has added up its chunk."""

    def __init__(self, memory: SharedVectors) -> None:
        super().__init__(memory.own)
        self.memory, self.added, self.site = memory, False, record.site or here()
        self.work = self._all_here()

    def _all_here(self) -> Any:
        with about(self.site):
            return _all_here("all-reduce", self.memory.group, self.memory.own.nbytes)

    def advance(self) -> None:
        if self.added:
            return
        self.work.wait()
        group = self.memory.group
        # All chunks are added in the same order of members. No other member reads or writes this
        # one meanwhile.
        mine, *others = (vector.tensor_split(group.size)[group.slot] for vector in self.memory.vectors)
        for other in others:
            mine.add_(other)
        for other in others:
            other.copy_(mine)
        self.work, self.added = self._all_here(), True

    def wait(self) -> Tensor:
        self.advance()
        self.work.wait()
        return self.result


def _all_here(what: str, group: Group, size: int) -> Any:
    """Work that is over once every member has come to the same place: by pipes, or by sockets where
    there are none. size: the bytes on record."""
    come = arrivals(group)
    if come is not None:
        return LoggedWork(what, group, _NOTHING, size).of(come.begin())
    sent = torch.zeros(group.size, dtype=torch.uint8)
    work = LoggedWork(what, group, sent, size)
    return work.of(group.handle(sent).alltoall_base(torch.empty_like(sent), sent, [], []))


class StagingBuffers:
    """Two places for each member of a group, which it fills by turns and the others read.

    free: the places that hold nothing that this rank has yet to read. known: those that no member
    reads any more. uses: how often each has been filled. All members begin and wait alike, so they
    know the same: once all have begun one, all have read what they had read when this rank began
    it."""

    def __init__(self, group: Group, vectors: Sequence[Tensor]) -> None:
        self.group, self.places = group, [vector.view(2, -1).unbind() for vector in vectors]
        self.free, self.known = {0, 1}, {0, 1}
        self.uses = [0, 0]

    def place(self, *shape: int) -> Tensor | None:
        """One that this rank may fill with a tensor of that shape, if there is one."""
        if not self.known or (count := math.prod(shape)) > len(self.places[0][0]):
            return None
        return self.places[self.group.slot][min(self.known)][:count].view(shape)

    def begin(self, what: str, x: Tensor) -> Staged | None:
        """All members' vectors, or this member's row of their sum, once their places are full; None
        where `x` is in no place."""
        own, made = self.places[self.group.slot], Staged if what == "all-gather" else StagedSum
        at = next((at for at, place in enumerate(own) if place.data_ptr() == x.data_ptr()), None)
        return None if at is None else made(self, what, at, x)


class Staged(AsyncResult):
    """Every member's vector on its way here. It must be read after `wait`, before the next one
    begins."""

    def __init__(self, staging: StagingBuffers, what: str, place: int, x: Tensor) -> None:
        self.staging, self.place, self.count = staging, place, x.numel()
        staging.free.remove(place)
        staging.known.remove(place)
        staging.uses[place] += 1
        self.read = {free: staging.uses[free] for free in staging.free}
        self.work = _all_here(what, staging.group, x.nbytes * (staging.group.size if what == "all-gather" else 1))

    def wait(self) -> Any:
        """A vector of each member, in order."""
        self.work.wait()
        self.staging.known |= {place for place, use in self.read.items() if use == self.staging.uses[place]}
        self.staging.free.add(self.place)
        return [places[self.place][: self.count] for places in self.staging.places]


class StagedSum(Staged):
    """This member's row of the sum of what all have put in their places."""

    def wait(self) -> Tensor:
        group = self.staging.group
        mine = [flat.view(group.size, -1)[group.slot] for flat in super().wait()]
        return total(torch.stack(mine))  # the same bits as by sockets


def stage(group: Group, count: int, like: Tensor, dtype: torch.dtype) -> StagingBuffers | None:
    """Places of `count` elements for all members; all call it at once. None where the device of
    `like`, or the size, does not ask for it, and as `share` says."""
    if not like.is_cpu or count * dtype.itemsize < _WORTH:
        return None
    vectors = _vectors(group, 2 * count, dtype)
    return StagingBuffers(group, vectors) if vectors is not None else None


def share(group: Group, count: int, like: Tensor) -> SharedVectors | None:
    """Vectors [count] for all members of the group, of the dtype of `like`; all call it at once.
    None, for all alike, where sockets do as well, on devices, of elements that each sum would
    round, and where the ranks are not on one machine or it does not let them share: that costs time
    alone."""
    if not like.is_cpu or like.dtype.itemsize < 4 or count * like.dtype.itemsize < _WORTH:
        return None
    vectors = _vectors(group, count, like.dtype)
    return SharedVectors(group, vectors) if vectors is not None else None


def _vectors(group: Group, count: int, dtype: torch.dtype) -> list[Tensor] | None:
    """A vector for each member of the group, mapped by all; None, for all alike, where that cannot
    be."""
    if group.size == 1:
        return None
    size = count * dtype.itemsize
    # On another machine that process may have another file under that number: the name tells.
    token = int.from_bytes(os.urandom(7))
    file = _made(token, size)
    files = begin_all_gather(torch.tensor([os.getpid(), file, token]), group).wait().tolist()
    mapped = [vector for each in files if (vector := _mapped(each, count, dtype)) is not None]
    all_mapped = len(mapped) == group.size
    agreed = begin_all_gather(torch.tensor([all_mapped]), group).wait().all()
    if file >= 0:
        os.close(file)
    if not (agreed and all_mapped):
        return None
    arrivals(group)  # now, as all members are here
    return mapped


def _name(token: int) -> str:
    return f"shardlang-{token}"


def _made(token: int, size: int) -> int:
    """A new file of zeros: its number, -1 if the system has none, or none of that size."""
    try:
        file = os.memfd_create(_name(token))
    except (AttributeError, OSError):
        return -1
    try:
        os.ftruncate(file, size)
    except OSError:
        os.close(file)
        return -1
    return file


def _mapped(found: tuple[int, int, int], count: int, dtype: torch.dtype) -> Tensor | None:
    """A file of some process of this machine as a vector; None if it cannot be had."""
    process, file, token = found
    path = f"/proc/{process}/fd/{file}"
    try:
        if os.readlink(path) == f"/memfd:{_name(token)} (deleted)":
            return torch.from_file(path, shared=True, size=count, dtype=dtype)
    except (OSError, RuntimeError):
        # Of another machine, hidden, or no room to map it (torch's RuntimeError): then the whole
        # group uses sockets.
        return None
    return None
