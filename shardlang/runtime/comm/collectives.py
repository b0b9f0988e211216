"""One differentiable function per row of the conversion table: it moves a tensor between layouts,
its backward runs the exact dual.

Each takes the local tensor of this rank and the group it talks to; a group of size 1 (or None)
makes it the identity. Without a gradient (`torch.no_grad`, whole numbers) only the forward half
runs. The emitted program decides what runs in which order. `sizes` are the lengths of a dim's
shards by group index, where they are not all alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from shardlang.runtime.comm import blocks
from shardlang.runtime.comm.blocks import Sizes
from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.record import here, record

__all__ = [
    "all_gather", "all_gather_replicated", "all_reduce", "all_reduce_max", "all_reduce_min",
    "all_reduce_replicated", "all_to_all", "identical_to_pending", "identical_to_replicated", "permute",
    "reduce_scatter", "replicated_to_identical", "replicated_to_pending", "split", "split_replicated",
    "split_to_pending",
]  # fmt: skip


def _alone(group: Group | None) -> bool:
    return group is None or group.size == 1


def _plain(x: Tensor) -> bool:
    """`x` needs no gradient: the forward half is enough, without a node in the graph."""
    return not (torch.is_grad_enabled() and x.requires_grad)


# Of a dual, what only starts it.
_BEGUN: dict[Any, Any] = {blocks.reduced: blocks.begin_reduced, blocks.scattered: blocks.begin_scattered}


class LateGradients:
    """on: products leave the gradients of their weights to be computed while a dual travels."""

    on = False


class _Pair(Function):
    """A conversion as two local functions: `forth` now, `back` (its dual) on the gradient. beside:
    what products leave to be computed while that travels (functions/products.py)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Any, back: Any, arguments: tuple[Any, ...]) -> Tensor:
        ctx.back, ctx.arguments = back, arguments
        if back in _BEGUN:
            ctx.beside = []
        if torch.compiler.is_compiling():
            return forth(x, *arguments)
        ctx.site, before = here(4), record.site  # out of this, torch's `apply`, and two that call that
        record.site = ctx.site
        try:
            return forth(x, *arguments)
        finally:
            record.site = before

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.compiler.is_compiling():
            return ctx.back(gradient, *ctx.arguments), None, None, None
        before, record.site = record.site, getattr(ctx, "site", b"")
        try:
            if not getattr(ctx, "beside", ()):
                return ctx.back(gradient, *ctx.arguments), None, None, None
            end = _BEGUN[ctx.back](gradient, *ctx.arguments)
        finally:
            record.site = before
        while ctx.beside:
            ctx.beside.pop(0).compute()
        return end(), None, None, None


def _convert(x: Tensor, forth: Any, back: Any, *arguments: Any) -> Tensor:
    return forth(x, *arguments) if _plain(x) else _Pair.apply(x, forth, back, arguments)


def _nothing(x: Tensor, *_: Any) -> Tensor:
    return x.view_as(x)


def identical_to_replicated(x: Tensor, group: Group | None) -> Tensor:
    """I -> R: nothing; backward all-reduce."""
    return x if _alone(group) or _plain(x) else _Pair.apply(x, _nothing, blocks.reduced, (group,))


def replicated_to_identical(x: Tensor, group: Group | None) -> Tensor:
    """R -> I: nothing; backward keeps the gradient on member 0 alone."""
    return x if _alone(group) or _plain(x) else _Pair.apply(x, _nothing, blocks.first_only, (group,))


def all_reduce(x: Tensor, group: Group | None) -> Tensor:
    """P -> I: the sum over the group; backward nothing."""
    return x if _alone(group) else _convert(x, blocks.reduced, _nothing, group)


def all_reduce_replicated(x: Tensor, group: Group | None) -> Tensor:
    """P -> R: the sum over the group; backward the same of the gradient."""
    return x if _alone(group) else _convert(x, blocks.reduced, blocks.reduced, group)


def all_reduce_max(x: Tensor, group: Group | None) -> Tensor:
    """The element-wise maximum over the group; has no gradient."""
    return x.detach() if group is None or _alone(group) else blocks.reduced(x.detach(), group, "max")


def all_reduce_min(x: Tensor, group: Group | None) -> Tensor:
    """The element-wise minimum over the group; has no gradient."""
    return x.detach() if group is None or _alone(group) else blocks.reduced(x.detach(), group, "min")


def reduce_scatter(x: Tensor, dim: int, group: Group | None, sizes: Sizes = None) -> Tensor:
    """P -> S(dim): this rank's slice of the sum; backward all-gather."""
    return x if _alone(group) else _convert(x, blocks.scattered, blocks.gathered, dim, group, sizes)


def all_gather(x: Tensor, dim: int, group: Group | None, sizes: Sizes = None) -> Tensor:
    """S(dim) -> I: all slices joined along dim; backward this rank's slice of the gradient."""
    return x if _alone(group) else _convert(x, blocks.gathered, blocks.sliced, dim, group, sizes)


def all_gather_replicated(x: Tensor, dim: int, group: Group | None, sizes: Sizes = None) -> Tensor:
    """S(dim) -> R: all slices joined along dim; backward reduce-scatter."""
    return x if _alone(group) else _convert(x, blocks.gathered, blocks.scattered, dim, group, sizes)


def split(x: Tensor, dim: int, group: Group | None, sizes: Sizes = None) -> Tensor:
    """I -> S(dim): this rank's slice; backward all-gather."""
    return x if _alone(group) else _convert(x, blocks.sliced, blocks.gathered, dim, group, sizes)


def split_replicated(x: Tensor, dim: int, group: Group | None, sizes: Sizes = None) -> Tensor:
    """R -> S(dim): this rank's slice; backward puts the gradient in its place among zeros."""
    return x if _alone(group) else _convert(x, blocks.sliced, blocks.filled, dim, group, sizes)


def split_to_pending(x: Tensor, dim: int, group: Group | None, sizes: Sizes = None) -> Tensor:
    """S(dim) -> P: this rank's slice in its place among zeros; backward the slice."""
    return x if _alone(group) else _convert(x, blocks.filled, blocks.sliced, dim, group, sizes)


def identical_to_pending(x: Tensor, group: Group | None) -> Tensor:
    """I -> P: x on member 0, zeros elsewhere; backward nothing."""
    return x if _alone(group) else _convert(x, blocks.first_only, _nothing, group)


def replicated_to_pending(x: Tensor, group: Group | None) -> Tensor:
    """R -> P: x on member 0, zeros elsewhere; backward the same of the gradient."""
    return x if _alone(group) else _convert(x, blocks.first_only, blocks.first_only, group)


def _exchange_back(
    gradient: Tensor, gather_dim: int, split_dim: int, group: Group, gather_sizes: Sizes, split_sizes: Sizes
) -> Tensor:
    return blocks.exchange(gradient, split_dim, gather_dim, group, split_sizes, gather_sizes)


def all_to_all(
    x: Tensor, gather_dim: int, split_dim: int, group: Group | None, gather_sizes: Sizes = None,
    split_sizes: Sizes = None,
) -> Tensor:  # fmt: skip
    """S(gather_dim) -> S(split_dim): joins along one, slices along the other; backward reversed."""
    if _alone(group):
        return x
    return _convert(x, blocks.exchange, _exchange_back, gather_dim, split_dim, group, gather_sizes, split_sizes)


def _permute_back(gradient: Tensor, group: Group, sources: tuple[int, ...]) -> Tensor:
    return blocks.permuted(gradient, group, tuple(sources.index(i) for i in range(len(sources))))


def permute(x: Tensor, group: Group | None, sources: tuple[int, ...]) -> Tensor:
    """Member i receives the block of member sources[i] (equal blocks); backward the inverse."""
    return x if _alone(group) else _convert(x, blocks.permuted, _permute_back, group, tuple(sources))
