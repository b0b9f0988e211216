"""Carries values and gradients between stages: receives are posted ahead, in the order of the
sender; sends return at once; between stages of one rank a value is handed over as it is.

A channel is one direction between two ranks. Over gloo all use the group of all ranks, told apart
by tags; NCCL has no tags and runs a channel's messages one by one, so there each direction has a
group of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from shardlang.facts.actions import Action
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.record import LoggedWork, about
from shardlang.runtime.program import RunProgram, block, dtype_of
from shardlang.runtime.stages import Message, Stage, arrivals, needed, sent

# How many actions ahead receives are posted: what the next one needs travels while this one
# computes.
AHEAD = 2


@dataclass(frozen=True)
class Ends:
    """The two ranks of a channel, the sender first, as the members of what is sent over it."""

    ranks: tuple[int, int]

    @property
    def axes(self) -> tuple[str, ...]:
        return (f"from rank {self.ranks[0]} to rank {self.ranks[1]}",)


@dataclass(frozen=True, slots=True)
class PostedMessage:
    """A message of this rank. taker: the number of the action that takes it, if it is of this rank.
    peer: the other rank, or this one, which hands the message over. forms: shape and dtype of each
    tensor. tag: of the first of them; the next ones follow. site: what the record says it is."""

    taker: int
    peer: int
    forms: Sequence[tuple[tuple[int, ...], torch.dtype]]
    tag: int
    site: about


class MessageRoutes:
    """The messages of one pass over a batch, training (`table` of the schedule) or evaluation, seen
    from this rank: all that is the same in each step.

    mine: this rank's actions. peers: coordinate along the stages' axis -> rank. The others are for
    the number of an action. posts: the receives to post before it; takes: whether it takes a
    message; gives: the message that it sends, if any."""

    def __init__(self, program: RunProgram, table: Sequence[Sequence[Action]], evaluation: bool) -> None:
        assert program.pipeline is not None
        self.stages: Sequence[Stage] = program.stages
        if evaluation:
            self.stages = [replace(s, receives=[v for v in s.receives if v.evaluate]) for s in program.stages]
        self.coordinates = program.pipeline.coordinates
        group = program.mesh[program.pipeline.axis]
        self.here, self.peers = group.index, group.ranks
        self.mine = table[self.here]
        # By stage, shape and dtype of this rank's part of each value that it receives.
        self.forms = [
            [(block(v.mesh or program.mesh, v.shape, v.cut, v.sizes).shape, dtype_of(program, v)) for v in s.receives]
            for s in self.stages
        ]
        needs = [needed(action, self.stages) for action in self.mine]
        takers = {message: at for at, message in enumerate(needs) if message is not None}
        self.takes = [message is not None for message in needs]
        self.posts = self._posts(needs, takers, arrivals(table, self.stages, self.coordinates, self.here))
        sends, tags = [sent(action, self.stages) for action in self.mine], [0] * len(self.peers)
        self.gives = [
            None if message is None else self._carried(message, self.coordinates[message.stage], takers, tags)
            for message in sends
        ]

    def _posts(
        self, needs: Sequence[Message | None], takers: Mapping[Message, int], arriving: Mapping[int, Sequence[Message]]
    ) -> list[list[PostedMessage]]:
        """The receives that are due before each action: those of what it and the next ones need,
        and of all that the same sender sends before that."""
        left = {other: iter(messages) for other, messages in arriving.items()}
        tags, posted = [0] * len(self.peers), set[Message]()
        found: list[list[PostedMessage]] = []
        for at in range(len(needs)):
            row: list[PostedMessage] = []
            for message in needs[at : at + AHEAD]:
                source = self.here if message is None else self.source(message)
                while source != self.here and message not in posted:
                    posted.add(following := next(left[source]))
                    row.append(self._carried(following, source, takers, tags))
            found.append(row)
        return found

    def _carried(self, message: Message, other: int, takers: Mapping[Message, int], tags: list[int]) -> PostedMessage:
        """A message from or to a coordinate. tags: how many tensors came or went there before."""
        forms, tag = self.values(message), tags[other]
        tags[other] += len(forms)
        of = "values to" if message.forward else "gradients to"
        site = about(f"{of} stage {message.stage}, microbatch {message.microbatch}".encode())
        return PostedMessage(takers.get(message, -1), self.peers[other], forms, tag, site)

    @property
    def channels(self) -> set[tuple[int, int]]:
        """(source, target) of all messages from or to this rank."""
        mine = self.peers[self.here]
        come = {(each.peer, mine) for row in self.posts for each in row}
        return come | {(mine, each.peer) for each in self.gives if each is not None and each.peer != mine}

    def values(self, message: Message) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each tensor of a message."""
        if message.forward:
            return self.forms[message.stage]
        after = self.stages[message.stage + 1].receives
        return [form for form, value in zip(self.forms[message.stage + 1], after, strict=True) if value.gradient]

    def source(self, message: Message) -> int:
        """The coordinate that sends a message."""
        return self.coordinates[message.stage + (-1 if message.forward else 1)]


class Exchange:
    """The messages of one pass over a batch. Actions are known by their numbers."""

    def __init__(self, routes: MessageRoutes) -> None:
        self.routes = routes
        self.here: dict[int, list[tuple[Tensor, Any]]] = {}
        self.sending: list[tuple[Tensor, Any]] = []

    def expect(self, at: int) -> None:
        """Posts the receives that are due before an action."""
        for message in self.routes.posts[at]:
            posted, tag = [], message.tag
            with message.site:
                for shape, dtype in message.forms:
                    tensor = torch.empty(shape, dtype=dtype, device=world.device)
                    posted.append((tensor, begin_receive(tensor, message.peer, tag)))
                    tag += 1
            self.here[message.taker] = posted

    def take(self, at: int) -> list[Tensor]:
        """The tensors that an action needs, once they are here; none where it needs none."""
        if not self.routes.takes[at]:
            return []
        arrived = self.here.pop(at)
        for _, work in arrived:
            if work is not None:
                work.wait()
        return [tensor for tensor, _ in arrived]

    def give(self, at: int, tensors: Sequence[Tensor]) -> None:
        """Sends what an action has made, if it is for another stage."""
        message = self.routes.gives[at]
        if message is None:
            return
        if message.peer == world.rank:
            self.here[message.taker] = [(tensor, None) for tensor in tensors]
            return
        self.sending = [(tensor, work) for tensor, work in self.sending if not work.is_completed()]
        tag = message.tag
        with message.site:
            for tensor in tensors:
                whole = tensor.contiguous()
                work = begin_send(whole, message.peer, tag)
                tag += 1
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
    return LoggedWork("send", Ends((world.rank, target)), tensor).of(handle.send([tensor], number, tag))


def begin_receive(tensor: Tensor, source: int, tag: int) -> Any:
    """Starts to receive into a tensor; None where there is nothing in it."""
    if tensor.numel() == 0:
        return None
    handle, number = world.channel(source, world.rank)
    return LoggedWork("receive", Ends((source, world.rank)), tensor).of(handle.recv([tensor], number, tag))
