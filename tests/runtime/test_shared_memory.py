"""Sums and gathers in memory that ranks share: the same bits on all, step after step; where it is not to be had, by
sockets.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from shardlang import runtime as rt
from shardlang.runtime.comm.gloo import arrivals, shared_memory
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.logs import Log
from shardlang.runtime.state.buckets import SumBucket
from shardlang.runtime.state.zero import ShardBucket
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.runtime.forked import on_ranks
from tests.runtime.test_gathers import program

COUNTS = (131_072, 131_073, 400_003)  # just worth it; none of the others divides


def parts(count: int, dtype: torch.dtype, step: int) -> list[torch.Tensor]:
    """What each rank gives to a sum."""
    seeds = [torch.Generator().manual_seed(100 * step + rank) for rank in range(world.size)]
    return [torch.rand(count, dtype=dtype, generator=seed) for seed in seeds]


def sums() -> None:
    group = rt.Mesh(dp=world.size).dp
    for dtype in (torch.float32, torch.float64):
        memories = [shared_memory.share(group, count, torch.empty(0, dtype=dtype)) for count in COUNTS]
        for step in range(3):
            given = [parts(count, dtype, step) for count in COUNTS]
            started = []
            for memory, each in zip(memories, given, strict=True):
                assert memory is not None
                memory.own.copy_(each[world.rank])
                started.append(memory.begin_sum())
            for begun, each in zip(started, given, strict=True):
                total, expected = begun.wait(), torch.zeros_like(each[0])
                for part in each:
                    expected += part
                assert torch.equal(total, expected)
                total.fill_(7.0)  # as clipping does: it is this rank's from now on


def buckets() -> None:
    """Buckets over both axes of a mesh, in which ranks are not in the order of the axes."""
    mesh = rt.Mesh(a=2, b=world.size // 2)
    members = [torch.zeros(300, 500, requires_grad=True), torch.zeros(3, requires_grad=True)]
    bucket = SumBucket(mesh["b", "a"], members)
    assert bucket.memory is not None
    for step in range(2):
        for member in members[: 2 - step]:  # in the second step one has got none
            member.grad = torch.full(member.shape, float(world.rank + step))
        bucket.launch()
        bucket.advance()
        bucket.finish()
        total = float(sum(range(world.size)) + step * world.size)
        assert torch.equal(members[0].grad, torch.full((300, 500), total))
        assert torch.equal(members[1].grad, torch.full((3,), 0.0 if step else total))
        for member in members:
            member.grad = None


def gathers() -> None:
    """Members fill two places by turns, each at its own pace, and read what all have filled."""
    group = rt.Mesh(dp=world.size).dp
    staging = shared_memory.stage(group, COUNTS[0], torch.empty(0), torch.float32)
    assert staging is not None and staging.place(COUNTS[0] + 1) is None
    own = [place.data_ptr() for place in staging.places[world.rank]]
    for step in range(40):
        place = staging.place(COUNTS[0])
        assert place is not None and place.data_ptr() == own[step % 2]
        begun = staging.begin("all-gather", place.fill_(10.0 * step + world.rank))
        assert begun is not None
        time.sleep(0.002 * ((step + world.rank) % 3))
        for rank, vector in enumerate(begun.wait()):
            assert torch.equal(vector, torch.full_like(vector, 10.0 * step + rank))


def places_in_use() -> None:
    """What has not been read is not filled anew, nor what another member may still read."""
    group = rt.Mesh(dp=world.size).dp
    staging = shared_memory.stage(group, COUNTS[0], torch.empty(0), torch.float32)
    assert staging is not None
    first, second = (staging.begin("all-gather", place[:3]) for place in staging.places[world.rank])
    assert first is not None and second is not None and staging.place(3) is None
    assert staging.begin("all-gather", torch.zeros(3)) is None  # it is in no place
    second.wait()
    assert staging.place(3) is None  # the first is unread; of the second others may be behind
    first.wait()
    assert staging.place(3) is None


def training() -> None:
    """Steps of ZeRO 2 and 3: the same bits as by sockets, also in microbatches."""
    worth = shared_memory._WORTH
    for zero, parts in ((2, 1), (3, 1), (3, 2)):
        found = []
        for shared_memory._WORTH in (1, 1 << 60):
            made = program(zero, 10_000, parts=parts)
            run = TrainingRun(made, datasets(made), log := Noted())
            staged = [bucket.staging for bucket in run.model.buckets if isinstance(bucket, ShardBucket)]
            staged += run.model.gathers.staged.values()
            assert staged and all((each is not None) == (shared_memory._WORTH == 1) for each in staged)
            run.train()
            found.append((log.figures, [block().clone() for _, block in run.model.blocks() if block is not None]))
        (figures, values), (others, theirs) = found
        assert len(figures) == 8 and figures == others
        assert all(torch.equal(one, other) for one, other in zip(values, theirs, strict=True))
    shared_memory._WORTH = worth


class Noted(Log):
    """Keeps the figures of steps."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.figures: list[Mapping[str, float]] = []

    def step(self, step: int, epoch: int, figures: Mapping[str, float], *further: Any) -> None:
        self.figures.append({"loss": figures["loss"]})


def not_worth_it() -> None:
    group = rt.Mesh(dp=world.size).dp
    assert shared_memory.share(group, COUNTS[0] - 1, torch.empty(0)) is None
    assert shared_memory.share(group, 2 * COUNTS[0], torch.empty(0, dtype=torch.bfloat16)) is None


def refused() -> None:
    """One rank cannot make a file, cannot find another's, or finds one of another name: none of them shares."""
    group = rt.Mesh(dp=world.size).dp
    right, found = shared_memory._made, shared_memory._mapped
    for made, mapped in (
        (lambda token, size: -1, found),
        (right, lambda *_: None),
        (lambda token, size: right(token + 1, size), found),
    ):
        if world.rank == 1:
            shared_memory._made, shared_memory._mapped = made, mapped  # type: ignore[assignment]
        member = torch.zeros(COUNTS[0], requires_grad=True)
        bucket = SumBucket(group, [member])
        shared_memory._made, shared_memory._mapped = right, found  # type: ignore[assignment]
        assert bucket.memory is None
        member.grad = torch.full_like(member, world.rank + 1.0)
        bucket.launch()
        bucket.advance()
        bucket.finish()
        assert torch.equal(member.grad, torch.full_like(member, sum(range(1, world.size + 1))))


def too_large() -> None:
    """One rank may not have files of that size: none shares, and nothing stays open."""
    import resource

    before, limits = os.listdir("/proc/self/fd"), resource.getrlimit(resource.RLIMIT_FSIZE)
    if world.rank == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (COUNTS[0], limits[1]))
    assert shared_memory.share(rt.Mesh(dp=world.size).dp, COUNTS[0], torch.empty(0)) is None
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not arrivals.kept
    assert len(os.listdir("/proc/self/fd")) == len(before)


def closed() -> None:
    """No file of memory stays open, and what nobody uses any more is given back. Two ends of pipes for each other
    member stay, once for all memory of a group, until the ranks part.
    """
    group = rt.Mesh(dp=world.size).dp
    before = os.listdir("/proc/self/fd")
    memory, further = (shared_memory.share(group, COUNTS[0], torch.empty(0)) for _ in range(2))
    assert memory is not None and further is not None
    memory.own.fill_(1.0)
    memory.begin_sum().wait()
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2 * (world.size - 1)
    assert "shardlang-" in Path("/proc/self/maps").read_text()
    del memory, further
    gc.collect()
    assert "shardlang-" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("what", [
    "sums", "buckets", "gathers", "places_in_use", "training", "not_worth_it", "refused", "too_large", "closed",
])  # fmt: skip
def test_on_four_ranks(what: str) -> None:
    on_ranks(__file__, what, 4)


def test_on_two_ranks() -> None:
    on_ranks(__file__, "sums", 2)
