"""Optimizers of a user's own: a function of a parameter, its gradient and its state, each as far as
the declaration says that it needs to see.

A function of elements gets what this rank trains. One of rows or of whole parameters gets these
gathered from the ranks that have the rest; each of them computes all of it, and keeps its part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.extensions import loaded
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.record import naming
from shardlang.runtime.program import Extent
from shardlang.runtime.state import mapped
from shardlang.runtime.state.row_optimizers import ALL

State = dict[str, Tensor]


def stepped(
    function: Callable[..., Any], file: Path, parameter: Tensor, gradient: Tensor, state: State, step: int,
    settings: Mapping[str, Any],
) -> tuple[Tensor, State]:  # fmt: skip
    """The parameter and the state after a step, by a function of the user's. RunError SH622 where
    it gives something else."""
    name = getattr(function, "__name__", "the optimizer")
    called = f"`{name}` at step {step}, for a parameter of {_shape(parameter)},"

    def wrong(fact: str) -> RunError:
        return RunError("SH622", f"{called} {fact}", file=file)

    with loaded.calling("SH622", called, file):
        found = function(parameter, gradient, state, step, **settings)
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
        raise wrong("gives no pair of the parameter and a dict of its state")
    given = {"the parameter": found[0], **{f"state `{name}`": value for name, value in found[1].items()}}
    if set(found[1]) != set(state):
        listed = [", ".join(f"`{name}`" for name in names) or "none" for names in (found[1], state)]
        raise wrong(f"gives state {listed[0]}, where {listed[1]} is declared")
    for what, value in given.items():
        if not isinstance(value, Tensor):
            raise wrong(f"gives {type(value).__name__} for {what}, where a tensor is due")
        if value.shape != parameter.shape or value.dtype != parameter.dtype:
            raise wrong(f"gives {what} as {_shape(value)}, like which the parameter is not")
    return found[0], {name: found[1][name] for name in state}


def _shape(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


@dataclass
class OptimizerView:
    """The part of a parameter that its optimizer gets on this rank, put together from those of a
    group. mine: this rank's block of the whole. rows: only along the dims after the first."""

    path: str
    shape: tuple[int, ...]
    mine: Extent
    group: Group
    rows: bool
    blocks: Sequence[tuple[slice, ...]] = ()

    def gathered(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """This rank's parts of tensors like the parameter -> as much of each as is needed."""
        if not self.blocks:
            self.blocks = self._placed(parts[0].device)
        like = parts[0]
        sizes = [math.prod(each.stop - each.start for each in block) for block in self.blocks]
        widest = max(sizes)
        flat = like.new_zeros(len(parts), widest)
        for row, part in zip(flat, parts, strict=True):
            row[: part.numel()] = part.reshape(-1)
        with naming("a parameter for its optimizer", [self.path]):
            found = primitives.all_gather(flat.view(-1), self.group).view(-1, len(parts), widest)
        wholes = [like.new_empty(self.due) for _ in parts]
        for slot, (block, size) in enumerate(zip(self.blocks, sizes, strict=True)):
            for at, whole in enumerate(wholes):
                whole[block] = found[slot, at, :size].view(whole[block].shape)
        return wholes

    @property
    def due(self) -> tuple[int, ...]:
        return (self.mine.shape[0], *self.shape[1:]) if self.rows else self.shape

    def kept(self, whole: Tensor) -> Tensor:
        """This rank's part of what `gathered` has put together."""
        return whole[self._own()]

    def _own(self) -> tuple[slice, ...]:
        own = self.mine.slices()
        return (slice(0, self.mine.shape[0]), *own[1:]) if self.rows else own

    def _placed(self, device: torch.device) -> list[tuple[slice, ...]]:
        """The places of all members' blocks, by their numbers in the group."""
        ends = torch.tensor([[s.start, s.stop] for s in self._own()], dtype=torch.int64, device=device)
        told = primitives.all_gather(ends.view(-1), self.group).view(-1, len(self.shape), 2).tolist()
        return [tuple(slice(first, end) for first, end in block) for block in told]


class OwnOptimizer:
    """The optimizer of `tensors`; seen: how each is gathered, None where it is not."""

    def __init__(
        self, tensors: Sequence[Tensor], seen: Sequence[OptimizerView | None], *, call: loaded.OwnFunction,
        state: Sequence[str], settings: Mapping[str, Any], needs: str, base: Path,
    ) -> None:  # fmt: skip
        self.all, self.seen = list(tensors), list(seen)
        self.tensors = [t for t in tensors if t.numel()]
        self.function, self.file = call.found(base), base / call.file
        self.lr, self.settings, self.steps = float(settings["lr"]), dict(settings), list[int]()
        self.resumed(0)
        self.states = [{name: mapped.like(t, 0.0) for name in state} for t in self.all]
        self.names = list(state)

    def step(self, lr: float) -> None:
        self.steps = [step + 1 for step in self.steps]
        settings = {**self.settings, "lr": lr}
        for tensor, state, seen, step in zip(self.all, self.states, self.seen, self.steps, strict=True):
            gradient = tensor.grad if tensor.grad is not None else torch.zeros_like(tensor)
            parts = [tensor.detach(), gradient, *state.values()]
            if seen is not None:
                parts = seen.gathered(parts)
            elif not tensor.numel():
                continue
            given = dict(zip(self.names, parts[2:], strict=True))
            if not parts[0].numel():
                continue
            changed, after = stepped(self.function, self.file, parts[0], parts[1], given, step, settings)
            for mine, whole in ((tensor, changed), *((state[name], after[name]) for name in self.names)):
                mine.copy_((whole if seen is None else seen.kept(whole)).view(mine.shape))

    def kept(self) -> dict[str, list[Tensor]]:
        """The state that the next step depends on, by name, a tensor for each of `tensors`."""
        there = [state for tensor, state in zip(self.all, self.states, strict=True) if tensor.numel()]
        return {name: [state[name] for state in there] for name in self.names}

    def resumed(self, step: int, late: Mapping[int, int] = ALL) -> None:
        """Goes on after `step` steps, whose state `kept` has been given. late: of a tensor, by its
        id, the steps before its state began."""
        self.steps = [step - late.get(id(t), 0) for t in self.all]
