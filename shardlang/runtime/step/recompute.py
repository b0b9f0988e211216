"""Recomputation: values that backward computes again instead of keeping them:
`rt.recompute(function, *inputs)`.

Random numbers are counter-based, so nothing of a generator is kept; collectives inside run again,
on all ranks alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["recompute"]


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


def _contexts() -> tuple[Any, Any]:
    return contextlib.nullcontext(), _again()


def recompute(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """function(*inputs). Only its inputs are kept; backward calls it again."""
    if not torch.is_grad_enabled():
        return function(*inputs)
    Recomputing.note()
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts)
