"""Facts of the runtime on which lines of the overlap table rest, and that no other test sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from shardlang.cost.hardware import Hardware
from shardlang.cost.overlap import emitted
from shardlang.cost.profile import Profile
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.primitives import AsyncResult
from shardlang.runtime.device import Cpu, Cuda
from shardlang.runtime.state.buckets import Reducer
from shardlang.runtime.state.zero import ShardBucket, Zero12Parameter


@dataclass
class Noted:
    """A bucket that notes what is done with it."""

    name: str
    seen: list[str]
    members: list[Tensor] = field(default_factory=lambda: [torch.zeros(1, requires_grad=True)])
    each: bool = True
    paths: tuple[str, ...] = ("w",)
    groups: tuple[object, ...] = ()

    def launch(self) -> None:
        self.seen.append(f"launch {self.name}")

    def collect(self) -> None:
        self.seen.append(f"collect {self.name}")

    def advance(self) -> None:
        self.seen.append(f"advance {self.name}")

    def finish(self) -> None:
        self.seen.append(f"finish {self.name}")


def test_the_overlap_of_a_device_is_that_of_its_kind() -> None:
    """The CPU puts nothing beside a collective in line, and the time of its steps has it so."""
    assert emitted(True).dual == Cuda.overlaps and emitted(False).dual == Cpu.overlaps
    cpu = Hardware("cpu", profile=Profile("cpu", asynchronous=False))
    assert cpu.overlap == emitted(False) and Hardware("h100").overlap == emitted(True)


def test_of_sums_that_hold_memory_one_travels_at_a_time() -> None:
    """Also from one microbatch to the next; at the end of the step the last one is waited for with the others."""
    seen: list[str] = []
    buckets = [Noted("a", seen), Noted("b", seen)]
    reducer = Reducer(buckets)  # type: ignore[arg-type]
    for number in range(2):
        seen.append(f"backward {number}")
        reducer.start()
        for bucket in buckets:
            bucket.members[0].sum().backward()
        reducer.complete()
    reducer.finish()
    first, second = ("launch a", "collect a", "launch b"), ("collect b", "launch a", "collect a", "launch b")
    end = "advance a", "advance b", "finish a", "finish b"
    assert seen == ["backward 0", *first, "backward 1", *second, *end]


def test_updated_rows_are_waited_for_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Coming:
        def __init__(self, mine: Tensor) -> None:
            self.mine = mine

        def wait(self) -> Tensor:
            seen.append("wait")
            return self.mine.view(1, -1)

    def begun(mine: Tensor, group: object) -> Coming:
        seen.append("begin")
        return Coming(mine)

    monkeypatch.setattr(primitives, "begin_all_gather", begun)
    group = SimpleNamespace(size=1, in_order=True, axes=(), slot=0, start=lambda n: 0, chunk=lambda n: n)
    bucket = ShardBucket.__new__(ShardBucket)
    bucket.parameters = [Zero12Parameter(torch.ones(2, 2), group)]  # type: ignore[arg-type]
    bucket.widths, bucket.group, bucket.coming, bucket.paths = [4], group, None, ("w",)  # type: ignore[assignment]
    bucket.publish()
    assert seen == ["begin"]
    bucket.settle()
    assert seen == ["begin", "wait"]


def test_rows_that_are_updated_again_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """No forward reads a bucket between updates: those on their way never come over newer ones."""
    group = SimpleNamespace(size=2, in_order=True, axes=(), slot=0, start=lambda n: 0, chunk=lambda n: n // 2)
    monkeypatch.setattr(primitives, "begin_all_gather", lambda mine, group: AsyncResult(torch.stack([mine, mine])))
    held = Zero12Parameter(torch.zeros(4), group)  # type: ignore[arg-type]
    bucket = ShardBucket.__new__(ShardBucket)
    bucket.parameters, bucket.widths, bucket.paths = [held], [2], ("w",)
    bucket.group, bucket.coming = group, None  # type: ignore[assignment]
    for count in range(1, 5):
        with torch.no_grad():
            held.piece.add_(1)
        assert held.piece.tolist() == [count] * 2
        bucket.publish()
        assert held.piece.tolist() == [count] * 2
    with torch.no_grad():
        held.piece.fill_(7)
    bucket.settle()
    assert held.whole.tolist() == [7, 7, 4, 4]
    bucket.publish()
    held.piece.data.fill_(9)  # which autograd does not count
    bucket.publish()
    bucket.settle()
    assert held.whole.tolist() == [9] * 4


def test_rows_that_nothing_has_changed_are_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(size=2, in_order=True, axes=(), slot=0, start=lambda n: 0, chunk=lambda n: n // 2)
    monkeypatch.setattr(primitives, "begin_all_gather", lambda mine, group: AsyncResult(torch.stack([mine, mine])))
    bucket = ShardBucket.__new__(ShardBucket)
    bucket.parameters, bucket.widths, bucket.paths = [Zero12Parameter(torch.zeros(4), group)], [2], ("w",)  # type: ignore[arg-type]
    bucket.group, bucket.coming = group, None  # type: ignore[assignment]
    bucket.publish()
    monkeypatch.setattr(bucket, "_rows", lambda into: pytest.fail("they are copied"))
    bucket.settle()
    assert bucket.coming is None
