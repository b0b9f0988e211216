"""Carries values and gradients between stages: receives are posted ahead, in the order of the
sender; sends return at once; between stages of one rank a value is handed over as it is.

A channel is one direction between two ranks. Over gloo all use the group of all ranks, told apart
by tags; NCCL has no tags and runs a channel's messages one by one, so there each direction has a
group of its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.record import Work, about
from shardlang.runtime.program import Program, block, dtype_of
from shardlang.runtime.stages import Action, Message, Stage, arrivals, needed, sent


class Routes:
    """The messages of one pass over a batch, training (`table` of the schedule) or evaluation, seen
    from this rank.

    mine: this rank's actions. peers: coordinate along the stages' axis -> rank."""

    def __init__(self, program: Program, table: Sequence[Sequence[Action]], evaluation: bool) -> None:
        assert program.pipeline is not None
        self.stages: Sequence[Stage] = program.stages
        if evaluation:
            self.stages = [replace(s, receives=[v for v in s.receives if v.evaluate]) for s in program.stages]
        self.coordinates = program.pipeline.coordinates
        group = program.mesh[program.pipeline.axis]
        self.here, self.peers = group.index, group.ranks
        self.mine = table[self.here]
        self.arriving = arrivals(table, self.stages, self.coordinates, self.here)
        # By stage, shape and dtype of this rank's part of each value that it receives.
        self.forms = [
            [(block(v.mesh or program.mesh, v.shape, v.cut, v.sizes).shape, dtype_of(program, v)) for v in s.receives]
            for s in self.stages
        ]

    @property
    def channels(self) -> set[tuple[int, int]]:
        """(source, target) of all messages from or to this rank."""
        ours = [(self.source(m), self.here) for messages in self.arriving.values() for m in messages]
        sends = [sent(action, self.stages) for action in self.mine]
        ours += [(self.here, self.coordinates[message.stage]) for message in sends if message is not None]
        return {(self.peers[source], self.peers[target]) for source, target in ours if source != target}

    def values(self, message: Message) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each tensor of a message."""
        if message.forward:
            return self.forms[message.stage]
        after = self.stages[message.stage + 1].receives
        return [form for form, value in zip(self.forms[message.stage + 1], after, strict=True) if value.gradient]

    def source(self, message: Message) -> int:
        """The coordinate that sends a message."""
        return self.coordinates[message.stage + (-1 if message.forward else 1)]

    def needs(self, at: int) -> list[Message]:
        """The values that action number `at` of this rank receives."""
        message = needed(self.mine[at], self.stages) if at < len(self.mine) else None
        return [] if message is None else [message]


@dataclass(frozen=True)
class Ends:
    """The two ranks of a channel, the sender first, as the members of what is sent over it."""

    ranks: tuple[int, int]

    @property
    def axes(self) -> tuple[str, ...]:
        return (f"from rank {self.ranks[0]} to rank {self.ranks[1]}",)


@cache
def _cited(message: Message) -> about:
    """Says for the collectives within which message they are."""
    of = "values to" if message.forward else "gradients to"
    return about(f"{of} stage {message.stage}, microbatch {message.microbatch}".encode())


class Exchange:
    """The messages of one pass over a batch."""

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.handed: dict[Message, list[Tensor]] = {}
        self.posted: dict[Message, list[tuple[Tensor, Any]]] = {}
        self.taken: set[Message] = set()
        self.left = {other: iter(messages) for other, messages in routes.arriving.items()}
        self.sending: list[tuple[Tensor, Any]] = []
        self.tags = {other: itertools.count() for other in range(len(routes.peers))}
        self.own_tags = {other: itertools.count() for other in range(len(routes.peers))}

    def expect(self, message: Message) -> None:
        """Posts the receives of all that its sender sends up to `message`."""
        source = self.routes.source(message)
        while source != self.routes.here and message not in self.posted and message not in self.taken:
            following, posted = next(self.left[source]), []
            with _cited(following):
                for shape, dtype in self.routes.values(following):
                    tensor = torch.empty(shape, dtype=dtype, device=world.device)
                    posted.append((tensor, begin_receive(tensor, self.routes.peers[source], next(self.tags[source]))))
            self.posted[following] = posted

    def take(self, message: Message) -> list[Tensor]:
        """The tensors of a message, once they are here."""
        if self.routes.source(message) == self.routes.here:
            return self.handed.pop(message)
        self.expect(message)
        arrived = self.posted.pop(message)
        self.taken.add(message)
        for _, work in arrived:
            if work is not None:
                work.wait()
        return [tensor for tensor, _ in arrived]

    def give(self, action: Action, tensors: Sequence[Tensor]) -> None:
        """Sends what an action has made, if it is for another stage."""
        message = sent(action, self.routes.stages)
        if message is None:
            return
        target = self.routes.coordinates[message.stage]
        if target == self.routes.here:
            self.handed[message] = list(tensors)
            return
        self.sending = [(tensor, work) for tensor, work in self.sending if not work.is_completed()]
        with _cited(message):
            for tensor in tensors:
                whole, tag = tensor.contiguous(), next(self.own_tags[target])
                work = begin_send(whole, self.routes.peers[target], tag)
                if work is not None:
                    self.sending.append((whole, work))

    def finish(self) -> None:
        """Waits until all that this rank has sent is away."""
        for _, work in self.sending:
            work.wait()
        self.sending.clear()


def begin_send(tensor: Tensor, target: int, tag: int) -> Any:
    """Starts to send a contiguous tensor to a rank; None where there is nothing in it."""
    if tensor.numel() == 0:
        return None
    handle, number = world.channel(world.rank, target)
    return Work("send", Ends((world.rank, target)), tensor).of(handle.send([tensor], number, tag))


def begin_receive(tensor: Tensor, source: int, tag: int) -> Any:
    """Starts to receive into a tensor; None where there is nothing in it."""
    if tensor.numel() == 0:
        return None
    handle, number = world.channel(source, world.rank)
    return Work("receive", Ends((source, world.rank)), tensor).of(handle.recv([tensor], number, tag))
