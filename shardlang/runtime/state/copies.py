"""Parameters in a lower precision: one copy of each on a rank, which every read in every microbatch
shares.

The copies are made at the start and after each update, all in one kernel (model.py). The gradient
of a read goes to the parameter in the parameter's own type, before it is added to others. That of a
matrix and of the vector that is read right after it, such as the bias of a product, come together:
one kernel is for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _Read(Function):
    """(leaves, then their copies) -> values."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Any:
        leaves, copies = given[: len(given) // 2], given[len(given) // 2 :]
        ctx.dtype, ctx.none = leaves[0].dtype, (None,) * len(copies)
        ctx.set_materialize_grads(False)
        # Tensors of their own for each read: autograd writes into them what made them.
        values = tuple([copy.detach() for copy in copies])
        return values if len(values) > 1 else values[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # One kernel, also for a single gradient: that of `to` takes nearly twice as long on a GPU.
        cast = [g if g is None else torch.empty_like(g, dtype=ctx.dtype) for g in gradients]
        there = [(to, g) for to, g in zip(cast, gradients, strict=True) if g is not None]
        if there:
            torch._foreach_copy_(*map(list, zip(*there, strict=True)))
        return *cast, *ctx.none


# What torch's `apply` ends with: to look for torch.func before that takes longer than a cast does.
_APPLY: Any = super(Function, _Read).apply


class ParameterCopy:
    """A parameter's copy. vector: that of another parameter, which is read with it in case it is
    the next one that is read. ready: the copy of which the last read has made a value, and that."""

    ready: tuple[ParameterCopy, Tensor] | None = None

    def __init__(self, leaf: Tensor, copy: Tensor) -> None:
        self.leaf, self.copy = leaf, copy
        self.vector: ParameterCopy | None = None

    def read(self) -> Tensor:
        """The copy, in its own memory, with a gradient for the parameter."""
        if torch.compiler.is_compiling():
            made: Tensor = _Read.apply(self.leaf, self.copy)
            return made
        ready, ParameterCopy.ready = ParameterCopy.ready, None
        if ready is not None and ready[0] is self and ready[1].requires_grad == torch.is_grad_enabled():
            return ready[1]
        if self.vector is None:
            alone: Tensor = _APPLY(self.leaf, self.copy)
            return alone
        found, other = _APPLY(self.leaf, self.vector.leaf, self.copy, self.vector.copy)
        ParameterCopy.ready = self.vector, other
        return found

    def goes_with(self, vector: ParameterCopy) -> bool:
        """Whether the two are cast by one kernel."""
        kinds = {(each.leaf.requires_grad, each.leaf.dtype, each.leaf.device) for each in (self, vector)}
        return self.leaf.requires_grad and len(kinds) == 1 and self.copy.dim() > 1 == vector.copy.dim()


def reads(leaves: Mapping[str, Tensor], copies: Mapping[str, Tensor]) -> dict[str, Callable[[], Tensor]]:
    """Path -> what gives its copy at each use. A matrix is read with the vector that follows it."""
    found = {path: ParameterCopy(leaves[path], copy) for path, copy in copies.items()}
    for (path, copy), (other, vector) in pairwise(found.items()):
        if path.rpartition(".")[0] == other.rpartition(".")[0] and copy.goes_with(vector):
            copy.vector = vector
    return {path: copy.read for path, copy in found.items()}


def at_once(members: Sequence[Tensor | Callable[[], Tensor]]) -> list[Tensor]:
    """Tensors, and what functions give: the copies of parameters that are trained by one read, so
    that one kernel is for the gradients of all."""
    found = [getattr(member, "__self__", None) for member in members]
    copies = [each for each in found if isinstance(each, ParameterCopy) and each.leaf.requires_grad]
    if len({(each.leaf.dtype, each.leaf.device) for each in copies}) != 1:
        return [member if isinstance(member, Tensor) else member() for member in members]
    ParameterCopy.ready = None
    read = _APPLY(*(each.leaf for each in copies), *(each.copy for each in copies))
    values = dict(zip(map(id, copies), read if len(copies) > 1 else (read,), strict=True))
    return [
        values[id(copy)] if id(copy) in values else member if isinstance(member, Tensor) else member()
        for copy, member in zip(found, members, strict=True)
    ]
