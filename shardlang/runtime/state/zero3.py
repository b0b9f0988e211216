"""ZeRO 3: parameters of which this rank stores its rows alone, whole only while they are used.

The first run of a pass (the forward, the backward of a stage) shows what it uses, and in which
order. From then on parameters come several at a time, in one collective, and the next ones travel
while these are computed with. Autograd's copies of them are dropped, and gathered again in
backward."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group, world
from shardlang.runtime.state import alive
from shardlang.runtime.state.zero import gathered, joined, wholes, width


class Stored:
    """A parameter of `shape` (of what this rank would hold without ZeRO), whose rows `piece` are
    here.

    Calling it gives the whole, with a gradient unless `frozen`, as a value of type `dtype`. leaf:
    what autograd knows it by, without elements; the gradient of the whole is taken from here. once:
    it counts in the first microbatch only. keep: it is gathered once a step."""

    def __init__(
        self, piece: Tensor, shape: tuple[int, ...], group: Group, gathers: Gathers, dtype: torch.dtype | None = None,
        frozen: bool = False,
    ) -> None:  # fmt: skip
        self.piece, self.shape, self.group, self.gathers = piece, shape, group, gathers
        self.dtype = dtype or piece.dtype
        self.leaf = piece.new_empty(0, requires_grad=not frozen)
        self.gradient: Tensor | None = None
        self.once = self.keep = False

    def gather(self, dtype: torch.dtype | None = None) -> Tensor:
        """The whole, without gradient; in its own type, unless another is given."""
        return gathered(self.piece, self.shape, self.group, dtype or self.piece.dtype)

    def add(self, gradient: Tensor) -> None:
        """Accumulates a gradient of the whole."""
        if self.once and world.microbatch:
            return
        gradient = gradient.to(self.piece.dtype)
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def take(self) -> Tensor | None:
        gradient, self.gradient, self.leaf.grad = self.gradient, None, None
        return gradient

    def saved(self) -> None:
        """Autograd has saved the whole: nothing is to be done for it."""

    def bring(self) -> Tensor:
        """The whole, now."""
        return self.gathers.bring(self)

    def __call__(self) -> Tensor:
        whole = _Gather.apply(self.leaf, self)
        alive.note(whole, self)
        return whole


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, stored: Stored) -> Tensor:
        ctx.stored = stored
        # A tensor of its own for each use: autograd writes into it what made it.
        return stored.bring().detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.stored.add(gradient)
        return torch.empty_like(ctx.stored.leaf), None


class Together:
    """Parameters over one group that come in one collective, as values of type `dtype`."""

    def __init__(self, members: Sequence[Stored], dtype: torch.dtype) -> None:
        self.members, self.dtype, self.group = list(members), dtype, members[0].group

    def begin(self) -> primitives.Ready:
        widths = [width(member.shape, self.group) for member in self.members]
        mine = joined([member.piece.detach() for member in self.members], widths, self.dtype)
        return primitives.begin_all_gather(mine, self.group)

    def arrived(self, coming: primitives.Ready) -> list[Tensor]:
        """The whole of each member."""
        return list(wholes(coming.wait(), [m.shape for m in self.members], self.group))


@dataclass(frozen=True)
class Order:
    """The parameters that a pass uses, in order; where: the number of the collective it comes in;
    last: its last use of that."""

    uses: list[Stored]
    where: list[int]
    last: list[bool]
    groups: list[Together]

    @classmethod
    def of(cls, uses: Sequence[Stored], limit: int) -> Order:
        """Cut into collectives of at most `limit` bytes, of one group and type each."""
        members: list[list[Stored]] = []
        where: list[int] = []
        kind, used = None, limit + 1
        for stored in uses:
            if kind != (stored.group, stored.dtype) or stored not in members[-1]:
                size = math.prod(stored.shape) * stored.dtype.itemsize
                used += size
                if kind != (stored.group, stored.dtype) or used > limit:
                    members.append([])
                    kind, used = (stored.group, stored.dtype), size
                members[-1].append(stored)
            where.append(len(members) - 1)
        latest = {(place, id(stored)): at for at, (place, stored) in enumerate(zip(where, uses, strict=True))}
        last = [latest[place, id(stored)] == at for at, (place, stored) in enumerate(zip(where, uses, strict=True))]
        return cls(list(uses), where, last, [Together(group, group[0].dtype) for group in members])


@dataclass
class Pass:
    """One pass under way. opened: arrived collectives; coming: the next; here: what is left."""

    order: Order | None
    uses: list[Stored] = field(default_factory=list)
    opened: int = 0
    coming: primitives.Ready | None = None
    here: dict[int, Tensor] = field(default_factory=dict)


class Gathers:
    """Brings stored parameters. limit: bytes of a collective."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.orders: dict[Hashable, Order] = {}
        self.now: Pass | None = None
        self.kept: dict[Stored, Tensor] = {}

    @contextlib.contextmanager
    def during(self, kind: Hashable) -> Iterator[None]:
        """A pass of some kind; those of one kind use the same parameters in the same order."""
        order = self.orders.get(kind)
        self.now = now = Pass(order)
        if order is not None and order.groups:
            now.coming = order.groups[0].begin()
        try:
            yield
        finally:
            self.now = None
        if now.order is None or len(now.uses) < len(now.order.uses):
            self.orders[kind] = Order.of(now.uses, self.limit)
            self._forget(now)

    def release(self) -> None:
        """Lets go of what is kept: what it was gathered from will change."""
        self.kept.clear()

    def bring(self, stored: Stored) -> Tensor:
        """The whole of a parameter, now."""
        now = self.now
        if now is not None and stored.keep:
            if stored not in self.kept:
                self.kept[stored] = stored.gather(stored.dtype)
            return self.kept[stored]
        if now is None:
            return stored.gather(stored.dtype)
        at = len(now.uses)
        now.uses.append(stored)
        if now.order is not None and (at >= len(now.order.uses) or now.order.uses[at] is not stored):
            self._forget(now)
        if now.order is None:
            return stored.gather(stored.dtype)
        if now.order.where[at] >= now.opened:
            self._open(now, now.order)
        return now.here.pop(id(stored)) if now.order.last[at] else now.here[id(stored)]

    def _open(self, now: Pass, order: Order) -> None:
        """Waits for the next collective, and starts the one after it."""
        group = order.groups[now.opened]
        assert now.coming is not None
        now.here = {id(m): whole for m, whole in zip(group.members, group.arrived(now.coming), strict=True)}
        now.opened += 1
        now.coming = order.groups[now.opened].begin() if now.opened < len(order.groups) else None

    def _forget(self, now: Pass) -> None:
        """The pass goes another way than the one that it was learned from."""
        if now.coming is not None:
            now.coming.wait()
        now.order, now.coming, now.here = None, None, {}
