"""An operator on simulated ranks: each computes the operator's meaning on the part that it has.

No rank can compute alone what an operator reduces or exchanges within itself. There the ranks that
share a factor of it join their parts by their places and compute the whole once. Each is handed its
slice, or a copy where the result lacks the factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from shardlang.interpret.meaning.call import OperatorCall, computed
from shardlang.interpret.meaning.operators import MOVED, OPERATORS
from shardlang.interpret.ranks import exchanges
from shardlang.interpret.ranks.coordinates import groups_of, parts_of
from shardlang.ops.families.losses import KEPT_COUNT
from shardlang.ops.rule import DimFactors, shared_axes
from shardlang.ops.rule import Split as Mark
from shardlang.types.mesh import Mesh

Tensors = Sequence[Tensor]
Dims = tuple[DimFactors, ...]


@dataclass(frozen=True)
class SplitOperator:
    """An operator on all ranks. call: on the whole. axes: per factor, the axes that split it.
    part_sizes: factor -> the sizes of its parts, if listed."""

    call: OperatorCall
    axes: tuple[tuple[str, ...], ...]
    mesh: Mesh
    part_sizes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def joined(self) -> frozenset[int]:
        """The factors that ranks join: those reduced or exchanged, and others on their axes."""
        pairs = list(zip(self.call.rule.factors, self.axes, strict=True))
        inside = [axis for factor, axes in pairs if factor.split is Mark.INSIDE for axis in axes]
        within = {*inside, *shared_axes(self.call.rule, self.axes)}
        return frozenset(f for f, axes in enumerate(self.axes) if within.intersection(axes))

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks that compute together."""
        axes = dict.fromkeys(axis for f in sorted(self.joined) for axis in self.axes[f])
        return groups_of(self.mesh, tuple(axes))

    @cached_property
    def calls(self) -> tuple[OperatorCall, ...]:
        """The part of the operator that each rank has."""
        return tuple(self._call(rank) for rank in range(self.mesh.size))

    def _call(self, rank: int) -> OperatorCall:
        pairs = enumerate(zip(self.call.rule.factors, self.axes, strict=True))
        parts = [parts_of(self.mesh, f.size, axes, self.part_sizes.get(i))[rank] for i, (f, axes) in pairs]
        return replace(self.call, sizes=tuple(size for _, size in parts), starts=tuple(start for start, _ in parts))

    def together(self, rank: int) -> OperatorCall:
        """The operator as a rank computes it with those that it joins."""
        call = self.calls[rank]
        if not self.joined:
            return call
        sizes = [f.size if i in self.joined else call.sizes[i] for i, f in enumerate(call.rule.factors)]
        starts = [0 if i in self.joined else start for i, start in enumerate(call.starts)]
        return replace(call, sizes=tuple(sizes), starts=tuple(starts))

    def place(self, rank: int, dims: Dims) -> tuple[slice, ...]:
        """The place of a rank's part in the tensor of its group, along factors of some dims."""
        call, every = self.calls[rank], slice(None)
        starts = [(f, call.starts[f]) for dim in dims for f in dim]
        return tuple(slice(start, start + call.sizes[f]) if f in self.joined else every for f, start in starts)

    def join(self, xs: Tensors, dims: Dims, members: Sequence[int]) -> Tensor:
        """A tensor of all members; the first of those that have the same place counts."""
        if not any(f in self.joined for dim in dims for f in dim):
            return xs[members[0]]
        call = self.together(members[0])
        whole = xs[members[0]].new_zeros([call.sizes[f] for dim in dims for f in dim])
        for rank in reversed(members):
            at = self.place(rank, dims)
            whole[at] = xs[rank].reshape(whole[at].shape)
        return whole.reshape(call.local(dims))

    def hand_out(self, result: Tensor, members: Sequence[int]) -> list[Tensor]:
        """Each member's slice; without a cut, copies, of which the first has the gradient."""
        (dims,) = self.call.rule.results
        if not any(f in self.joined for dim in dims for f in dim):
            copies = [result.detach().clone().requires_grad_(result.requires_grad) for _ in members[1:]]
            return [result, *copies]
        call = self.together(members[0])
        apart = result.reshape([call.sizes[f] for dim in dims for f in dim])
        return [apart[self.place(r, dims)].reshape(self.calls[r].local(dims)) for r in members]

    def once(self, at: int) -> tuple[str, ...]:
        """The axes over which operand `at` joins, on one rank, a sum that others split (a bias)."""
        rule = self.call.rule
        beside = {other for some in rule.through if at in some for other in some}
        kept = {f for tensor in (rule.operands[at], *rule.results) for dim in tensor for f in dim}
        summed = {f for other in beside for dim in rule.operands[other] for f in dim} - kept
        return tuple(axis for f in sorted(summed) for axis in self.axes[f])


def on_ranks(split: SplitOperator, operands: Sequence[Tensors]) -> list[Tensor]:
    """The operator's result on every rank; `operands[i][rank]` are the local operands."""
    given = [_added(split, at, xs) for at, xs in enumerate(operands)] + _counts(split, operands)
    made: dict[int, Tensor] = {}
    for members in split.groups:
        result = computed(OPERATORS, split.together(members[0]), tuple(_joined(split, given, members)))
        made.update(zip(members, split.hand_out(result, members), strict=True))
    return [made[rank] for rank in range(len(made))]


def moved_states(split: SplitOperator, operands: Sequence[Tensors]) -> list[Tensors]:
    """The states that the operator writes, as they are on every rank after it."""
    made: dict[int, tuple[Tensor, ...]] = {}
    for members in split.groups:
        moved = MOVED[split.call.operator](split.together(members[0]), *_joined(split, operands, members))
        made.update(dict.fromkeys(members, moved))
    return [list(xs) for xs in zip(*(made[rank] for rank in range(len(made))), strict=True)]


def _joined(split: SplitOperator, operands: Sequence[Tensors], members: Sequence[int]) -> list[Tensor]:
    dims = (*split.call.rule.operands, ())
    return [split.join(xs, dims[min(at, len(dims) - 1)], members) for at, xs in enumerate(operands)]


def _added(split: SplitOperator, at: int, xs: Tensors) -> Tensors:
    axes = split.once(at)
    groups = groups_of(split.mesh, axes) if axes else ()
    return exchanges.exchange(xs, groups, exchanges.kept_first, exchanges.kept_first)


def _counts(split: SplitOperator, operands: Sequence[Tensors]) -> list[Tensors]:
    """The number of labels that a loss keeps in the whole, if that is no operand of it."""
    rule = split.call.rule
    if split.call.attrs.get("ignore_index") is None or len(operands) != 2:
        return []
    counting = replace(split.call, operator=KEPT_COUNT, dtypes=(torch.int64,), indices=None)
    counts = [computed(OPERATORS, counting, (labels,)) for labels in operands[1]]
    axes = tuple(axis for dim in rule.operands[1] for f in dim for axis in split.axes[f])
    return [exchanges.exchange(counts, groups_of(split.mesh, axes), exchanges.total, exchanges.total)]
