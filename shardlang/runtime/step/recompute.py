"""Recomputation: values that backward computes again instead of keeping them:
`rt.recompute(function, *inputs)`.

Random numbers are counter-based, so nothing of a generator is kept; collectives inside run again,
on all ranks alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from shardlang.runtime.state import alive

__all__ = ["keeping", "recompute"]


class Recomputing:
    """now: backward runs a function again. used: `recompute` was called since last asked."""

    now = False
    _used = False

    @classmethod
    def called(cls) -> bool:
        """Whether `recompute` has been called; forgets it."""
        used, cls._used = cls._used, False
        return used

    @classmethod
    def note(cls) -> None:
        cls._used = True


@contextlib.contextmanager
def _again() -> Iterator[None]:
    Recomputing.now = True
    try:
        yield
    finally:
        Recomputing.now = False


def recompute(function: Callable[..., Any], *inputs: Any, drop_results: bool = False) -> Any:
    """function(*inputs). Only its inputs are kept; backward calls it again. drop_results: what it
    gives is not kept either, where later operators would save it for backward."""
    # Within a compiled block the compiler decides what is kept.
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function(*inputs)
    Recomputing.note()
    if not drop_results:
        return _checkpoint(function, *inputs)

    ends: list[Any] = []
    first = [True]

    def ended(*given: Any) -> Any:
        made = function(*given)
        end = _Ending.apply(*(made if isinstance(made, tuple) else (made,))).grad_fn
        if first:  # else backward is at work
            first.clear()
            ends.append(end)
        return made

    made = _checkpoint(ended, *inputs)
    # No longer held by `ended`, which an end holds, with all that its function was given.
    end = ends.pop()
    if end is not None:
        there = {x.untyped_storage()._cdata for x in inputs if isinstance(x, Tensor)}
        again = _Again(end)
        for at, x in enumerate(made if isinstance(made, tuple) else (made,)):
            if x.untyped_storage()._cdata not in there:
                alive.note(x, _Result(again, at))
    return made


def _checkpoint(function: Callable[..., Any], *inputs: Any) -> Any:
    return checkpoint(
        function, *inputs, use_reentrant=False, preserve_rng_state=False,
        context_fn=lambda: (contextlib.nullcontext(), _again()),
    )  # fmt: skip


def keeping(result: Tensor, *read: Tensor) -> Tensor:
    """`result`, with `read` saved for its backward, whatever its operator has saved: so what
    backward computes again for them is computed on each rank, before the operator's own backward.
    Kernels save nothing of an empty part, or in another order."""
    if not result.requires_grad or torch.compiler.is_compiling():
        return result
    kept: Tensor = _Keeping.apply(result, [x.detach() for x in read])
    return kept


class _Keeping(Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, read: Sequence[Tensor]) -> Tensor:
        ctx.save_for_backward(*read)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors
        return gradient, None


class _Ending(Function):
    """Saves the results as the last thing of a function, so that they can be asked of autograd,
    which calls the function again for them. Nothing is computed with what it gives."""

    @staticmethod
    def forward(ctx: Any, *results: Tensor) -> Tensor:
        ctx.save_for_backward(*results)
        return torch.empty(0)


class _Again:
    """The results of a function, once it has been called again. left: how often they will be asked
    for yet."""

    def __init__(self, end: Any) -> None:
        self.end, self.left = end, 0
        self.results: tuple[Tensor, ...] = ()

    def bring(self, at: int) -> Tensor:
        if not self.results:
            self.results = self.end.saved_tensors
        found = self.results[at]
        self.left -= 1
        if not self.left:
            self.results = ()
        return found


@dataclass(frozen=True)
class _Result:
    """One of the results, as their owner."""

    again: _Again
    at: int

    def saved(self) -> None:
        self.again.left += 1

    def bring(self) -> Tensor:
        return self.again.bring(self.at)
