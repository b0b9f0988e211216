"""The conversion table, forward and backward, on the tensors of all ranks at once.

A value is a list of local tensors by rank. Each row is a pair of functions from the tensors of a
group to its tensors; one node of torch's graph holds the tensors of the whole group, and its
backward is the row's dual and nothing else. Written from specs/redistribution.md, independent of
runtime/comm/collectives.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.interpret.ranks.coordinates import SizesOfDims, groups_of, others
from shardlang.plan.plan import Move, MoveKind
from shardlang.types.layout import Layout, listed_sizes
from shardlang.types.mesh import Mesh

Tensors = list[Tensor]
Change = Callable[[Tensors], Tensors]
Sizes = tuple[int, ...] | None


# --- what a group does ---


def nothing(xs: Tensors) -> Tensors:
    return [x.clone() for x in xs]


def total(xs: Tensors) -> Tensors:
    """Every member gets the sum."""
    return [x.clone() for x in summed(xs)]


def summed(xs: Tensors) -> Tensors:
    """The sum, one tensor for all members: nobody writes into it or differentiates through it."""
    return [torch.stack(xs).sum(0).to(xs[0].dtype)] * len(xs)  # of bools the sum is a whole number


def kept_first(xs: Tensors) -> Tensors:
    """Zeros but on the first member; chosen, not multiplied, so that 0 * NaN does not arise."""
    return [x.clone() if i == 0 else torch.zeros_like(x) for i, x in enumerate(xs)]


def gathered(dim: int, xs: Tensors) -> Tensors:
    """Every member gets all blocks, one after the other."""
    result = torch.cat(xs, dim)
    return [result.clone() for _ in xs]


def cut(dim: int, xs: Tensors, part_sizes: Sizes = None) -> Tensors:
    """Every member keeps its own block, in the sizes listed for as many, else torch.chunk's."""
    return [x.split(listed_sizes(x.shape[dim], len(xs), part_sizes), dim)[i].clone() for i, x in enumerate(xs)]


def scattered(dim: int, xs: Tensors, part_sizes: Sizes = None) -> Tensors:
    """Every member gets its block of the sum."""
    return cut(dim, total(xs), part_sizes)


def padded(dim: int, xs: Tensors) -> Tensors:
    """Every member puts its block into its place among zeros."""
    return [torch.cat([x if i == j else torch.zeros_like(y) for j, y in enumerate(xs)], dim) for i, x in enumerate(xs)]


def exchanged(gather: int, split: int, xs: Tensors, part_sizes: Sizes = None) -> Tensors:
    """Member i gets block i, along `split`, of what each member has, joined along `gather`."""
    pieces = [x.split(listed_sizes(x.shape[split], len(xs), part_sizes), split) for x in xs]
    return [torch.cat([mine[i] for mine in pieces], gather) for i in range(len(xs))]


def row(move: Move, part_sizes: SizesOfDims = ()) -> tuple[Change, Change]:
    """Forward and backward of a row of the table. part_sizes: per dim, if listed."""
    dim, from_dim, kind = move.dim, move.from_dim, MoveKind
    sizes, from_sizes = (part_sizes[d] if part_sizes and d >= 0 else None for d in (dim, from_dim))
    cut_here, scattered_here = partial(cut, dim, part_sizes=sizes), partial(scattered, dim, part_sizes=sizes)
    rows: dict[MoveKind, tuple[Change, Change]] = {
        kind.I_TO_R: (nothing, total),
        kind.P_TO_I: (total, nothing),
        kind.P_TO_R: (total, total),
        kind.P_TO_S: (scattered_here, partial(gathered, dim)),
        kind.S_TO_R: (partial(gathered, dim), scattered_here),
        kind.S_TO_I: (partial(gathered, dim), cut_here),
        kind.I_TO_S: (cut_here, partial(gathered, dim)),
        kind.R_TO_S: (cut_here, partial(padded, dim)),
        kind.S_TO_S: (
            partial(exchanged, from_dim, dim, part_sizes=sizes),
            partial(exchanged, dim, from_dim, part_sizes=from_sizes),
        ),
        kind.I_TO_P: (kept_first, nothing),
        kind.R_TO_P: (kept_first, kept_first),
        kind.R_TO_I: (nothing, kept_first),
        kind.S_TO_P: (partial(padded, dim), cut_here),
        kind.VIEW: (nothing, nothing),
    }
    return rows[move.kind]


# --- on all ranks ---


class _Exchange(Function):
    """A change of a group's tensors with its dual: gradients of all members to those of all."""

    @staticmethod
    def forward(ctx: Any, forth: Change, back: Change, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.back = back
        return tuple(forth(list(xs)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.back(list(gradients)))


def exchange(xs: Sequence[Tensor], groups: Sequence[Sequence[int]], forth: Change, back: Change) -> Tensors:
    """`forth` within each group of ranks, with `back` as its dual."""
    result = list(xs)
    for members in groups:
        mine = [xs[r] for r in members]
        made = _Exchange.apply(forth, back, *mine) if any(x.requires_grad for x in mine) else forth(mine)
        for rank, x in zip(members, made, strict=True):
            result[rank] = x
    return result


def converted(
    xs: Sequence[Tensor],
    move: Move,
    before: Layout,
    after: Layout,
    mesh: Mesh,
    after_mesh: Mesh,
    part_sizes: SizesOfDims = (),
) -> Tensors:
    """A value's tensors after a move of the plan; a view renames axes. part_sizes: per dim."""
    if move.kind is MoveKind.PERMUTE:
        return permuted(xs, before, after, mesh, after_mesh)
    forth, back = row(move, part_sizes)
    axes = move.axes if move.kind is not MoveKind.VIEW else ()
    return exchange(xs, groups_of(mesh, axes), forth, back)


def permuted(xs: Sequence[Tensor], before: Layout, after: Layout, mesh: Mesh, after_mesh: Mesh) -> Tensors:
    """Every rank takes the tensor of the rank that holds its blocks and states under `before`."""
    holders = {_part(before, rank, mesh): rank for rank in range(len(xs))}
    sources = [holders[_part(after, rank, after_mesh)] for rank in range(len(xs))]
    users = [sources.index(rank) for rank in range(len(xs))]

    def send(found: list[int]) -> Change:
        return lambda parts: [parts[r].clone() for r in found]

    return exchange(xs, [range(len(xs))], send(sources), send(users))


def _part(layout: Layout, rank: int, mesh: Mesh) -> tuple[int, ...]:
    """The number of a rank's block of each dim, and those in pending, replicated and identical."""
    named = (*layout.split_axes(), *layout.pending, *layout.replicated)
    every = (*layout.dims, layout.pending, layout.replicated, others(mesh, named))
    return tuple(mesh.index(rank, axes) for axes in every)
