"""Sums of large vectors among ranks of one machine, in memory that all of them have mapped.

Each member keeps its vector where the others find it, adds up one chunk of everybody's, and writes
that chunk into everybody's; what goes through sockets is only that all have come so far, twice. The
memory is a file without a name, memfd_create(2), which ends with the last process that has mapped
it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.record import Work, about, here, record

# From so many bytes on. Measured on 2, 4 and 8 ranks of 2 cores: below, sockets take as long or
# less; of 1 MB and more they take two to four times the processor time.
_WORTH = 524_288


class Memory:
    """A vector for each member of a group, in order; this rank fills `own` before a sum."""

    def __init__(self, group: Group, vectors: list[Tensor]) -> None:
        self.group, self.vectors = group, vectors
        self.own = vectors[group.slot]

    def begin_sum(self) -> SharedSum:
        """Starts the sum over the group, into `own`, which nobody may touch until it is there."""
        return SharedSum(self)


class SharedSum(primitives.Ready):
    """A sum on its way: all have filled their vectors, then each has added up its chunk."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory.own)
        self.memory, self.added, self.site = memory, False, record.site or here()
        self.work = self._all_here()

    def _all_here(self) -> Any:
        """The result must be waited for: that every member has come to the same place."""
        sent, group = torch.zeros(self.memory.group.size, dtype=torch.uint8), self.memory.group
        with about(self.site):
            work = Work("all-reduce", group, sent, self.memory.own.nbytes)
        return work.of(group.handle(sent).alltoall_base(torch.empty_like(sent), sent, [], []))

    def advance(self) -> None:
        if self.added:
            return
        self.work.wait()
        group = self.memory.group
        # All chunks are added in the same order of members. No other member reads or writes this
        # one meanwhile.
        total, *others = (vector.tensor_split(group.size)[group.slot] for vector in self.memory.vectors)
        for other in others:
            total.add_(other)
        for other in others:
            other.copy_(total)
        self.work, self.added = self._all_here(), True

    def wait(self) -> Tensor:
        self.advance()
        self.work.wait()
        return self.result


def share(group: Group, count: int, like: Tensor) -> Memory | None:
    """Vectors [count] for all members of the group, of the dtype of `like`; all call it at once.
    None, for all alike, where sockets do as well, on CUDA, of elements that each sum would round,
    and where the ranks are not on one machine or it does not let them share: that costs time alone.
    """
    dtype, size = like.dtype, count * like.dtype.itemsize
    if group.size == 1 or not like.is_cpu or dtype.itemsize < 4 or size < _WORTH:
        return None
    # On another machine that process may have another file under that number: the name tells.
    token = int.from_bytes(os.urandom(7))
    file = _made(token, size)
    files = primitives.all_gather(torch.tensor([os.getpid(), file, token]), group).tolist()
    mapped = [vector for each in files if (vector := _mapped(each, count, dtype)) is not None]
    all_mapped = len(mapped) == group.size
    agreed = primitives.all_gather(torch.tensor([all_mapped]), group).all()
    if file >= 0:
        os.close(file)
    return Memory(group, mapped) if agreed and all_mapped else None


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
