"""A function -> the same, which torch.compile calls as it is while it traces: `@as_it_is`.

Its result is a constant of what is compiled, and is not compared at later calls.
torch.compiler.assume_constant_result is the same, but imports torch's compiler, which takes
seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Called = TypeVar("Called", bound=Callable[..., Any])


def as_it_is(function: Called) -> Called:
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
