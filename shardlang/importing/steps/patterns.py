"""Patterns over steps: `("mul", "x", ("sigmoid", "x"))` fits each step that is x * sigmoid(x)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shardlang.importing.steps.nodes import Node, scalar

_COMMUTE = frozenset(("add", "mul"))
Found = dict[str, Any]


def match(step: Any, pattern: Any, found: Found | None = None) -> Found | None:
    """The nodes that the names of a pattern stand for, or None where it does not fit.

    A text is a name (`x`; one with `?` fits numbers, too), a number itself, a list one of as many
    steps, a tuple an operator with what it reads; further arguments of the step do not matter if
    they are numbers that add nothing."""
    found = {} if found is None else found
    if isinstance(pattern, str):
        return _named(step, pattern, found)
    if isinstance(pattern, int | float):
        number = scalar(step)
        return found if number is not None and math.isclose(number, pattern, rel_tol=1e-6) else None
    if isinstance(pattern, list):
        if not isinstance(step, list | tuple) or len(step) != len(pattern):
            return None
        return _each(step, pattern, found)
    name, *parts = pattern
    names = name.split("|")
    if not isinstance(step, Node) or step.op.removeprefix("aten.") not in names:
        return None
    args = list(step.args[: len(parts)])
    if len(args) < len(parts) or step.kwargs.get("alpha", 1) != 1 or step.kwargs.get("rounding_mode"):
        return None
    orders = [args, args[::-1]] if names[0] in _COMMUTE else [args]
    trials = (_each(order, parts, found) for order in orders)
    return next((trial for trial in trials if trial is not None), None)


def _each(steps: Sequence[Any], patterns: Sequence[Any], found: Found) -> Found | None:
    """Matches each step with its own pattern, by the same names."""
    trial: Found | None = found
    for step, pattern in zip(steps, patterns, strict=True):
        trial = match(step, pattern, trial) if trial is not None else None
    return trial


def _named(step: Any, name: str, found: Found) -> Found | None:
    if not isinstance(step, Node) and not name.endswith("?"):
        return None
    if name in found:
        same = found[name] is step or (not isinstance(step, Node) and found[name] == step)
        return found if same else None
    return {**found, name: step}
