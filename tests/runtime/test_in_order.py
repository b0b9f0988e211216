"""Every schedule on devices that do their work in order, as NCCL's streams do: no rank waits for ever.

A rank's host runs ahead and gives work to streams of its device: one that computes, and one for each channel to or
from another rank. A stream does one thing after the other. A message begins once all that its own rank computed before
is done, and goes when both of its ends have begun it. So torch's NCCL has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shardlang import runtime as rt
from shardlang.facts.actions import Action
from shardlang.plan.pipeline.schedules import SCHEDULES
from shardlang.runtime import messages
from shardlang.runtime.comm.mesh import World, world
from shardlang.runtime.device import KINDS, Cpu
from shardlang.runtime.stages import Received, Stage

VALUE = Received("f32", (1,), gradient=True)
CASES = [
    (name, virtual * coordinates, coordinates, microbatches)
    for name, schedule in SCHEDULES.items()
    for coordinates in (2, 3, 4, 8)
    for virtual in range(schedule.virtual[0], min(schedule.virtual[1], 3) + 1)
    for microbatches in (1, 2, 3, 4, 6, 8, 12, 16)
    if schedule.fits(virtual * coordinates, coordinates, microbatches)
]


@dataclass
class Done:
    """Something that a stream of a rank does, after all that is in `after`. channel: (source, target) of a message."""

    rank: Rank
    stream: Any
    after: list[Done]
    channel: tuple[int, int] | None = None
    done: bool = False

    def wait(self) -> None:
        """What the rank computes from now on comes after this."""
        self.rank.after.append(self)

    def is_completed(self) -> bool:
        return self.done


@dataclass
class Rank:
    """What the host of one rank gives to its device, in order."""

    given: list[Done] = field(default_factory=list)
    after: list[Done] = field(default_factory=list)

    def compute(self) -> None:
        self.given.append(Done(self, "compute", self.after))
        self.after = [self.given[-1]]

    def message(self, source: int, target: int) -> Done:
        self.given.append(Done(self, (source, target), list(self.after), (source, target)))
        return self.given[-1]


def hosts(monkeypatch: pytest.MonkeyPatch, name: str, stages: int, coordinates: int, microbatches: int) -> list[Rank]:
    """Each rank of a step, by the messages that the runtime sends and receives and when it does."""
    schedule = SCHEDULES[name]
    table = [[Action(a.stage, a.kind, a.microbatch) for a in row]
             for row in schedule.make(stages, coordinates, microbatches)]  # fmt: skip
    pipeline = SimpleNamespace(axis="pp", coordinates=schedule.place(stages, coordinates))
    made = [Stage(print, receives=[VALUE] if at else []) for at in range(stages)]
    found: list[Rank] = []
    monkeypatch.setattr(messages, "begin_receive", lambda x, source, tag: found[-1].message(source, world.rank))
    monkeypatch.setattr(messages, "begin_send", lambda x, target, tag: found[-1].message(world.rank, target))
    for rank in range(coordinates):
        monkeypatch.setattr(world, "rank", rank)
        program: Any = SimpleNamespace(pipeline=pipeline, mesh=rt.Mesh(pp=coordinates), stages=made, precision="f32")
        exchange = messages.Exchange(messages.MessageRoutes(program, table, False))
        found.append(Rank())
        for at in range(len(table[rank])):
            exchange.expect(at)
            tensors = exchange.take(at)
            found[-1].compute()
            exchange.give(at, tensors or [torch.zeros(1)])
        exchange.finish()
    return found


def stuck(ranks: list[Rank], lazy: bool) -> list[int]:
    """The ranks that never end. lazy: a host makes a channel when it first uses it; it waits there for the other one,
    and both for their devices, which may have to be still for that.
    """
    left = [deque(rank.given) for rank in ranks]
    streams: list[dict[Any, deque[Done]]] = [{} for _ in ranks]
    made: set[tuple[int, int]] = set()
    moved = True
    while moved:
        moved = False
        waits: dict[tuple[int, int], int] = {}
        for rank, given in enumerate(left):
            while given and not (lazy and given[0].channel is not None and given[0].channel not in made):
                moved, work = True, given.popleft()
                streams[rank].setdefault(work.stream, deque()).append(work)
            if given and not any(streams[rank].values()):
                assert given[0].channel is not None
                waits[given[0].channel] = waits.get(given[0].channel, 0) + 1
        both = {channel for channel, count in waits.items() if count == 2}
        made |= both
        moved = advance(streams) or bool(both) or moved
    return [rank for rank, given in enumerate(left) if given or any(streams[rank].values())]


def advance(streams: list[dict[Any, deque[Done]]]) -> bool:
    """Does what can be done at the heads of streams; whether there was any."""
    moved = False
    for rank, own in enumerate(streams):
        for stream, queue in own.items():
            ends = [queue]
            if stream != "compute":
                other = stream[0] if stream[1] == rank else stream[1]
                ends.append(streams[other].get(stream, deque()))
            if all(end and all(work.done for work in end[0].after) for end in ends):
                moved = True
                for end in ends:
                    end.popleft().done = True
    return moved


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_ends_where_groups_are_made_ahead(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in CASES if case[0] == name]
    assert len(cases) >= 12
    for case in cases:
        ranks = hosts(monkeypatch, *case)
        assert sum(work.channel is not None for rank in ranks for work in rank.given) % 2 == 0
        assert stuck(ranks, lazy=False) == [], case


@pytest.mark.parametrize("coordinates", [2, 4])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero_bubble"])
def test_groups_made_in_the_middle_of_a_step_would_hang(
    name: str, coordinates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it was before; it shows that the model of a device can find a hang."""
    assert stuck(hosts(monkeypatch, name, coordinates, coordinates, 2 * coordinates), lazy=True)


class Messages(Cpu):
    """A kind whose channels connect in their first message, where both hosts wait. asked: what a rank's host did."""

    tags = False

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def group(self, store: dist.Store, ranks: Sequence[int], at: int, name: str) -> Any:
        def asked(way: str) -> Any:
            return lambda xs, to, tag: self.asked.append((way, name)) or SimpleNamespace(wait=lambda: True)

        return SimpleNamespace(send=asked("send"), recv=asked("recv"))


def test_channels_are_connected_ahead_and_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is expected while another one is first sent would else wait for a host that waits."""
    channels = {(a, b) for a in range(4) for b in range(4) if abs(a - b) in (1, 3)}
    left: list[deque[tuple[str, str]]] = []
    for rank in range(4):
        monkeypatch.setitem(KINDS, "cpu", kind := Messages())
        own = World()
        own.rank, own.size, own.store = rank, 4, dist.HashStore()
        own.open([], {channel for channel in channels if rank in channel})
        left.append(deque(kind.asked))
        assert sorted(way for way, _ in kind.asked) == ["recv", "recv", "send", "send"]
    while any(left):
        heads = [row[0][1] for row in left if row]
        both = next(name for name in heads if heads.count(name) == 2)
        assert {row.popleft()[0] for row in left if row and row[0][1] == both} == {"send", "recv"}
