"""Pipes by which members tell each other that they have come: in any order of waiting, until one is gone; where there
are none, sockets.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime.comm import mesh
from shardlang.runtime.comm.gloo import arrivals, shared_memory
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.launch.rank import peer_gone
from tests.runtime.forked import on_ranks

COUNT = 131_072  # just worth shared memory


def group() -> mesh.Group:
    return rt.Mesh(dp=world.size).dp


def memory() -> shared_memory.SharedVectors:
    made = shared_memory.share(group(), COUNT, torch.empty(0))
    assert made is not None
    return made


def waits() -> None:
    """Nobody passes before all have come, in whichever order what was begun is waited for."""
    memory()
    found = arrivals.arrivals(group())
    assert found is not None
    when = torch.zeros(60, dtype=torch.float64)
    begun = []
    for at in range(len(when)):
        time.sleep(0.001 * ((at + world.rank) % 3))
        when[at] = time.monotonic()
        begun.append(found.begin())
    for at in (59, 3, 58, *range(58)):
        begun[at].wait()
        assert begun[at].is_completed()
        passed = torch.tensor(time.monotonic(), dtype=torch.float64)
        if at == 59:
            last = passed
    late = torch.stack([row[-1] for row in mesh_gathered(when)]).max()
    assert last >= late


def mesh_gathered(x: torch.Tensor) -> torch.Tensor:
    from shardlang.runtime.comm import primitives

    return primitives.all_gather(x, group())


def not_yet() -> None:
    """Over is what all have begun, and not what some have."""
    memory()
    found = arrivals.arrivals(group())
    assert found is not None
    if world.rank in (0, 2):
        begun = found.begin()
        while not found.came[2 - world.rank]:
            assert not begun.is_completed()
        assert not begun.is_completed()
        mesh_gathered(torch.zeros(1))
    else:
        mesh_gathered(torch.zeros(1))
        begun = found.begin()
    begun.wait()
    assert begun.is_completed()


def two_groups() -> None:
    """Groups that overlap have pipes of their own, and two groups of the same ranks the same."""
    grid = rt.Mesh(a=2, b=world.size // 2)
    found = []
    for each in (grid["a"], grid["b"], grid["a", "b"], grid["b", "a"]):
        made = shared_memory.share(each, COUNT, torch.empty(0))
        assert made is not None
        made.own.fill_(world.rank + 1.0)
        total = made.begin_sum()
        found.append(arrivals.arrivals(each))
        assert torch.equal(total.wait(), torch.full((COUNT,), float(sum(rank + 1 for rank in each.ranks))))
    assert len({id(each) for each in found}) == 3 and found[2] is found[3]


def gone() -> None:
    """One rank ends while the others wait for it: they are told so at once, before or after they begin."""
    shared = memory()
    if world.rank == 1:
        os._exit(0)
    with pytest.raises((RuntimeError, BrokenPipeError)) as caught:
        for _ in range(2):
            shared.begin_sum().wait()
    assert peer_gone(str(caught.value)), caught.value
    os._exit(0)


def stopped() -> None:
    """One rank stands still: the others wait, and go on once it does."""
    shared = memory()
    if world.rank == 1 and os.fork() == 0:
        for _ in range(2):
            time.sleep(0.5)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    shared.own.fill_(1.0)
    assert torch.equal(shared.begin_sum().wait(), torch.full((COUNT,), float(world.size)))


def too_late() -> None:
    """A member that never comes is waited for as long as sockets would wait."""
    import datetime

    memory()
    found = arrivals.arrivals(group())
    assert found is not None
    if world.rank == 0:
        arrivals.Timeout.collective = datetime.timedelta(seconds=0.2)
        with pytest.raises(RuntimeError, match="Timed out waiting for rank 1"):
            found.begin().wait()
    mesh_gathered(torch.zeros(1))


def refused() -> None:
    """One rank has no pipes, or cannot open another's: all meet by sockets, with the same sums, and no file stays."""
    right, found = arrivals._pipes, arrivals._opened
    before = len(os.listdir("/proc/self/fd"))
    for made, opened in ((lambda group: {}, found), (right, lambda *_: -1)):
        arrivals.kept.clear()
        if world.rank == 1:
            arrivals._pipes, arrivals._opened = made, opened  # type: ignore[assignment]
        shared = memory()
        arrivals._pipes, arrivals._opened = right, found
        assert arrivals.arrivals(group()) is None and len(os.listdir("/proc/self/fd")) == before
        for step in range(3):
            shared.own.fill_(world.rank + step)
            total = shared.begin_sum().wait()
            assert torch.equal(total, torch.full((COUNT,), float(sum(range(world.size)) + step * world.size)))


def another_pipe() -> None:
    """A file that is no longer the pipe is not opened: a number is given anew once it is free."""
    read, written = os.pipe()
    other = os.pipe()
    sign = os.fstat(written).st_ino
    opened = arrivals._opened(os.getpid(), written, sign)
    assert opened >= 0
    os.close(opened)
    os.dup2(other[1], written)
    assert arrivals._opened(os.getpid(), written, sign) == -1
    assert arrivals._opened(os.getpid(), 999, sign) == -1
    for file in (read, written, *other):
        os.close(file)


def parted() -> None:
    """Ranks that part close all pipes, and meet anew."""
    before = len(os.listdir("/proc/self/fd"))
    memory()
    assert len(os.listdir("/proc/self/fd")) == before + 2 * (world.size - 1)
    mesh_gathered(torch.zeros(1))
    world.leave()
    assert len(os.listdir("/proc/self/fd")) == before
    memory().begin_sum().wait()


@pytest.mark.parametrize("what", [
    "waits", "not_yet", "two_groups", "gone", "stopped", "too_late", "refused", "another_pipe", "parted",
])  # fmt: skip
def test_on_four_ranks(what: str) -> None:
    on_ranks(__file__, what, 4)
