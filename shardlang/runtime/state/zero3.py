"""ZeRO 3: parameters of which this rank stores its rows alone, whole only while they are used.

They come a layer at a time, in the order that the program says: the next layer's travel while one
is computed with, also from one pass (the forward, the backward of a stage) to the next. Autograd's
copies of them are dropped, and gathered again in backward."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.facts.gathers import GatherState
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group, world
from shardlang.runtime.comm.record import naming
from shardlang.runtime.state import alive
from shardlang.runtime.state.zero import gathered, joined, wholes, width

# The kind of an action, or EVALUATION, and its stage.
Pass = tuple[str, int]
Coming = primitives.AsyncResult


class Zero3Parameter:
    """A parameter of `shape` (of what this rank would hold without ZeRO), whose rows `piece` are
    here.

    Calling it gives the whole, with a gradient unless `frozen`, as a value of type `dtype`. leaf:
    what autograd knows it by, without elements; the gradient of the whole is taken from here. once:
    it counts in the first microbatch only. keep: it is gathered once a step."""

    def __init__(
        self, piece: Tensor, shape: tuple[int, ...], group: Group, gathers: GatherSchedule,
        dtype: torch.dtype | None = None, frozen: bool = False,
    ) -> None:  # fmt: skip
        self.piece, self.shape, self.group, self.gathers = piece, shape, group, gathers
        self.dtype = dtype or piece.dtype
        self.leaf = piece.new_empty(0, requires_grad=not frozen)
        self.gradient: Tensor | None = None
        self.once = self.keep = False
        self.path = ""

    def gather(self, dtype: torch.dtype | None = None) -> Tensor:
        """The whole, without gradient; in its own type, unless another is given."""
        with naming("rows", [self.path]):
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
    def forward(ctx: Any, leaf: Tensor, stored: Zero3Parameter) -> Tensor:
        ctx.stored = stored
        # A tensor of its own for each use: autograd writes into it what made it.
        return stored.bring().detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.stored.add(gradient)
        return torch.empty_like(ctx.stored.leaf), None


class Together:
    """Parameters over one group that come in one collective, as values of type `dtype`."""

    def __init__(self, members: Sequence[Zero3Parameter], dtype: torch.dtype) -> None:
        self.members, self.dtype, self.group = list(members), dtype, members[0].group
        self.cited = naming("rows", [member.path for member in members])

    def begin(self) -> Coming:
        widths = [width(member.shape, self.group) for member in self.members]
        pieces = [member.piece.detach() for member in self.members]
        staging = self.members[0].gathers.staged.get((self.group, self.dtype))
        mine = joined(pieces, widths, self.dtype, staging and staging.place(sum(widths)))
        with self.cited:
            return primitives.begin_all_gather(mine, self.group, staging)

    def arrived(self, coming: Coming) -> Iterator[tuple[Zero3Parameter, Tensor]]:
        """Each member with its whole."""
        return zip(self.members, wholes(coming.wait(), [m.shape for m in self.members], self.group), strict=True)


class GatheredUnit:
    """Parameters that come at one time: a collective for each group and type."""

    def __init__(self, members: Sequence[Zero3Parameter]) -> None:
        self.members, kinds = set(members), dict[Hashable, list[Zero3Parameter]]()
        for member in members:
            kinds.setdefault((member.group, member.dtype), []).append(member)
        self.collectives = [Together(mine, mine[0].dtype) for mine in kinds.values()]

    def begin(self) -> list[Coming]:
        return [collective.begin() for collective in self.collectives]


class GatherQueue:
    """The units of passes that follow each other. A unit that is there is not gathered again, and
    what is kept comes once.

    opened: how many units have been used, or left out. coming: the next; here: what the last one
    brought; kept: what stays to the end."""

    def __init__(self, passes: Sequence[Sequence[Sequence[Zero3Parameter]]]) -> None:
        self.units: list[GatheredUnit] = []
        self.begins: list[int] = []
        gathered = GatherState[Zero3Parameter]()
        for units in passes:
            self.begins.append(len(self.units))
            for members in units:
                if wanted := gathered.brings(members, [m for m in members if m.keep]):
                    self.units.append(GatheredUnit([m for m in members if m in wanted]))
        self.begins.append(len(self.units))
        self.restart()

    def restart(self) -> None:
        """Back to the first pass, with nothing gathered."""
        self.number, self.opened = -1, 0
        self.coming: list[Coming] = []
        self.here: dict[Zero3Parameter, Tensor] = {}
        self.kept: dict[Zero3Parameter, Tensor] = {}

    def enter(self) -> None:
        """The next pass begins: its first unit travels, if it has not come with the last one."""
        self.number += 1
        if self.opened < self.begins[self.number]:
            self._leave_out(self.begins[self.number])
        self._begin()

    def bring(self, stored: Zero3Parameter) -> Tensor:
        if (found := self.found(stored)) is None:
            mine = range(self.opened, self.begins[self.number + 1])
            at = next((at for at in mine if stored in self.units[at].members), None)
            if at is None:
                return stored.gather(stored.dtype)
            self._open(at)
            found = self.found(stored)
        assert found is not None
        return found

    def found(self, stored: Zero3Parameter) -> Tensor | None:
        """The whole of a parameter if it is there."""
        return (self.kept if stored.keep else self.here).get(stored)

    def _open(self, at: int) -> None:
        """Waits for a unit, and starts the next one. It lets go of the unit before it, so that no
        more than two are there."""
        if self.opened < at:
            self._leave_out(at)
        self._begin()
        unit = self.units[at]
        if not all(member.keep for member in unit.members):
            self.here = {}
        for collective in unit.collectives:  # what has come goes once it is copied
            for stored, whole in collective.arrived(self.coming.pop(0)):
                (self.kept if stored.keep else self.here)[stored] = whole
        self.opened = at + 1
        self._begin()

    def _begin(self) -> None:
        if not self.coming and self.opened < len(self.units):
            self.coming = self.units[self.opened].begin()

    def _leave_out(self, to: int) -> None:
        """Goes on to a later unit."""
        for ready in self.coming:
            ready.wait()
        self.coming, self.opened = [], to


class GatherSchedule:
    """Brings stored parameters, in the order that a program says."""

    def __init__(self) -> None:
        self.units: dict[Pass, list[list[Zero3Parameter]]] = {}
        self.step: Sequence[Pass] = ()
        self.line = GatherQueue(())
        # By group and type: memory through which rows come, where ranks share it.
        self.staged: dict[Hashable, primitives.StagingBuffers | None] = {}
        self.now: GatherQueue | None = None

    def order(self, units: dict[Pass, list[list[Zero3Parameter]]], step: Sequence[Pass]) -> None:
        """units: what comes together in each kind of pass; step: the passes of a step."""
        self.units, self.step = units, step
        self._stage([GatheredUnit(members) for kind in units.values() for members in kind])
        self.line = GatherQueue([units.get(kind, []) for kind in step])

    def _stage(self, units: Sequence[GatheredUnit]) -> None:
        """Makes places for what comes, the largest of each kind; all ranks of a group call it."""
        largest: dict[Hashable, tuple[Together, int]] = {}
        for each in (collective for unit in units for collective in unit.collectives):
            count = sum(width(member.shape, each.group) for member in each.members)
            if count > largest.get((each.group, each.dtype), (each, 0))[1]:
                largest[each.group, each.dtype] = each, count
        for kind, (each, count) in largest.items():
            self.staged[kind] = primitives.stage(each.group, count, each.members[0].piece, each.dtype)

    def during(self, kind: Pass) -> contextlib.AbstractContextManager[None]:
        """A pass: the next one of the step, or one that stands alone, such as an evaluation's."""
        return self._during(kind) if self.units else contextlib.nullcontext()

    @contextlib.contextmanager
    def _during(self, kind: Pass) -> Iterator[None]:
        line = self.line
        if kind not in self.step[line.number + 1 : line.number + 2]:
            line = GatherQueue([self.units.get(kind, [])])
        line.enter()
        self.now = line
        try:
            yield
        finally:
            self.now = None

    def release(self) -> None:
        """The passes of a step are over: nothing that was gathered stays."""
        self.line.restart()

    def bring(self, stored: Zero3Parameter) -> Tensor:
        """The whole of a parameter, now."""
        if self.now is not None:
            return self.now.bring(stored)
        found = self.line.found(stored)
        return stored.gather(stored.dtype) if found is None else found
