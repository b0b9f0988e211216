"""Members of a group that are processes of one machine -> who of them has come how far, told by a
byte through a pipe from each to each.

Gloo's sockets tell it as well, through a thread that wakes up for each message: with 4 ranks on 2
cores that costs each of them 0.8 ms of a processor, this a tenth of it. A member that is gone
closes its pipes, so that nobody waits for it. A pipe has no name: another process opens it where
/proc shows the files of the process that made it."""

from __future__ import annotations

import os
import select

import torch

from shardlang.runtime.comm.gloo.rounds import begin_all_gather
from shardlang.runtime.comm.mesh import Group, world
from shardlang.runtime.device import Timeout

_NONE = (-1, -1)

# Those of groups by their sorted ranks, until the ranks part; None: a group has none.
kept: dict[tuple[int, ...], Arrivals | None] = {}


class Arrivals:
    """The pipes of this member. heard: the file that each other member writes, by slot; told: the
    file that it reads. begun: how often this member has come; came: how often each other one
    has."""

    def __init__(self, ranks: tuple[int, ...], heard: dict[int, int], told: dict[int, int]) -> None:
        self.ranks, self.heard, self.told = ranks, heard, told
        self.begun, self.came = 0, dict.fromkeys(heard, 0)

    def begin(self) -> Arrival:
        """Tells all others that this member has come. All begin alike, and wait in any order."""
        for file in self.told.values():
            os.write(file, b"\0")
        self.begun += 1
        return Arrival(self, self.begun)

    def read(self, slot: int, block: bool = True) -> None:
        """Takes in how often another member has come since this was called; RuntimeError where it
        is gone, or does not come. block: waits for once."""
        try:
            found = os.read(self.heard[slot], 64)
        except BlockingIOError:
            if not block:
                return
            poll = select.poll()
            poll.register(self.heard[slot], select.POLLIN)
            if not poll.poll(Timeout.collective.total_seconds() * 1000):
                raise RuntimeError(f"Timed out waiting for rank {self.ranks[slot]}") from None
            found = os.read(self.heard[slot], 64)
        if not found:
            raise RuntimeError(f"Connection closed by peer: rank {self.ranks[slot]} is gone")
        self.came[slot] += len(found)

    def close(self) -> None:
        """Nobody waits for this member any more."""
        for file in (*self.heard.values(), *self.told.values()):
            os.close(file)
        self.heard, self.told = {}, {}


class Arrival:
    """Work that is over once all members have come as often as this one had when it began it."""

    __slots__ = ("number", "of")

    def __init__(self, of: Arrivals, number: int) -> None:
        self.of, self.number = of, number

    def wait(self) -> None:
        of, number = self.of, self.number
        for slot, came in of.came.items():
            while came < number:
                of.read(slot)
                came = of.came[slot]

    def is_completed(self) -> bool:
        for slot, came in self.of.came.items():
            if came < self.number:
                self.of.read(slot, block=False)
        return min(self.of.came.values()) >= self.number


def arrivals(group: Group) -> Arrivals | None:
    """Those of a group whose members are known to be on one machine, made once; all call it at
    once. None, for all alike, where it does not let them."""
    key = tuple(sorted(group.ranks))
    if key not in kept:
        found = kept[key] = _made(group, key)
        world.parting += [kept.clear] if found is None else [kept.clear, found.close]
    return kept[key]


def _made(group: Group, ranks: tuple[int, ...]) -> Arrivals | None:
    pipes = _pipes(group)
    own = [part for slot in range(group.size) for part in _sign(pipes, slot)]
    everyones = begin_all_gather(torch.tensor([os.getpid(), *own]), group).wait().tolist()
    told: dict[int, int] = {}
    for slot in pipes:
        process, *signs = everyones[slot]
        file = _opened(process, signs[2 * group.slot], signs[2 * group.slot + 1])
        if file >= 0:
            told[slot] = file
    agreed = begin_all_gather(torch.tensor([len(told) == group.size - 1]), group).wait().all()
    for _, written in pipes.values():
        os.close(written)
    found = Arrivals(ranks, {slot: read for slot, (read, _) in pipes.items()}, told)
    if agreed:
        return found
    found.close()
    return None


def _pipes(group: Group) -> dict[int, tuple[int, int]]:
    """A pipe from each other member, by slot: what is read, and what is written. Nothing where the
    system has no more."""
    pipes: dict[int, tuple[int, int]] = {}
    try:
        for slot in range(group.size):
            if slot != group.slot:
                pipes[slot] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except (AttributeError, OSError):
        for pipe in pipes.values():
            os.close(pipe[0])
            os.close(pipe[1])
        return {}
    return pipes


def _sign(pipes: dict[int, tuple[int, int]], slot: int) -> tuple[int, int]:
    """Tells another member its end of a pipe: the number of the file here, and the pipe's own."""
    if slot not in pipes:
        return _NONE
    written = pipes[slot][1]
    return written, os.fstat(written).st_ino


def _opened(process: int, file: int, pipe: int) -> int:
    """The end of a pipe that another process has, to write; -1 where it cannot be had."""
    path = f"/proc/{process}/fd/{file}"
    try:
        if os.readlink(path) == f"pipe:[{pipe}]":
            return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    return -1
