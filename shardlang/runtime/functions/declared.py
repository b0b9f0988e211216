"""Operators, and functions of other kinds, that a file of the user's declares, as emitted programs
call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shardlang.extensions import loaded
from shardlang.runtime.comm import collectives
from shardlang.runtime.functions.statistics import Dims, Groups, extreme, greatest, least, listed

__all__ = ["Declared", "Members"]


class Members:
    """The ranks that share the dims over which an operator of the user's sums: its `group`.

    sizes: those of the dims in the whole, by name. result: the ranks that all have the result,
    where it lacks a dim that is split."""

    def __init__(self, sizes: Mapping[str, int], group: Groups = None, result: Groups = None) -> None:
        self.sizes, self._group, self._result = dict(sizes), group, result

    def size(self, dim: str) -> int:
        """The size of a dim in the whole."""
        return self.sizes[dim]

    def sum(self, x: Tensor, dims: Dims) -> Tensor:
        """The sum of the whole over `dims` of x, which become 1. Its backward sums over the ranks,
        too."""
        x = x.sum(dims, keepdim=True)
        for each in listed(self._group):
            x = collectives.all_reduce_replicated(x, each)
        return x

    def max(self, x: Tensor, dims: Dims) -> Tensor:
        """The greatest number of the whole along `dims` of x, which become 1; without a
        gradient."""
        return greatest(extreme(x.detach(), _listed(dims)), self._group)

    def min(self, x: Tensor, dims: Dims) -> Tensor:
        """The least number of the whole along `dims` of x, which become 1; without a gradient."""
        return least(extreme(x.detach(), _listed(dims), low=True), self._group)

    def shared(self, result: Tensor) -> Tensor:
        """A result, which all have where it lacks a split dim: its gradient counts once."""
        for each in listed(self._result):
            result = collectives.replicated_to_identical(result, each)
        return result


def _listed(dims: Dims) -> tuple[int, ...]:
    return (dims,) if isinstance(dims, int) else tuple(dims)


class Declared:
    """The Python files of a program's operators, by path, with the hashes of their texts. They are
    loaded (`loaded.load`) before the program begins."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def named(self, file: str, name: str) -> loaded.OwnFunction:
        """A function of a file that is no operator: of a source, a schedule or an optimizer."""
        return loaded.OwnFunction(file, self.files[file], name)

    def call(self, file: str, name: str, /, *operands: Tensor, **settings: Any) -> Tensor:
        """The function's result. It was tried on operands that are contiguous, and gets such."""
        result = loaded.function(self.files[file], name)(*(x.contiguous() for x in operands), **settings)
        if not isinstance(result, Tensor):
            raise TypeError(f"`{name}` gave {type(result).__name__} where a tensor was declared")
        group = settings.get("group")
        return group.shared(result) if isinstance(group, Members) else result

    def part(
        self, shape: tuple[int, ...], dtype: torch.dtype, file: str, name: str, /, *operands: Tensor, **settings: object
    ) -> Tensor:
        """The same on a part that may be empty: then its result, empty too or a part of a sum, is
        zeros, and so are the gradients."""
        if all(x.numel() for x in operands):
            return self.call(file, name, *operands, **settings)
        zeros = torch.zeros(shape, dtype=dtype, device=operands[0].device)
        floating = [x.flatten()[:0].sum() for x in operands if x.is_floating_point()]
        return zeros + sum(floating) if dtype.is_floating_point and floating else zeros
