"""One device's values for each form of a plan, their size, and which of them are zero in truth, so
that rounding decides them.

Such an element says nothing of a plan, nor does what is computed from it; everything else is
compared as ever."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shardlang.graph.graph import Graph
from shardlang.interpret.meaning import whole
from shardlang.interpret.meaning.undecided import SMALLEST_SCALE, scale_of
from shardlang.plan.plan import Plan
from shardlang.plan.reads import Form, final_form

# Rounding on ranks is another draw of what moves one device: so many times the furthest of a few
# draws at most.
FURTHER = 8


def form_gradients(plan: Plan, results: whole.WholeResults) -> dict[Form, Tensor]:
    """One device's gradient at each form: the sum over uses at and below it in the value's tree."""
    found: dict[Form, Tensor] = {}

    def add(value: int, conversion: int, part: Tensor) -> None:
        at = conversion
        while True:
            found[value, at] = found[value, at] + part if (value, at) in found else part
            if at < 0:
                return
            at = plan.conversions[at].parent

    for planned in plan.ops:
        for position, use in enumerate(planned.operands):
            part = results.uses.get((planned.op, position))
            if part is not None:
                add(use.value, use.conversion, part)
    if plan.graph.loss is not None and results.loss is not None:
        value, conversion = final_form(plan, plan.graph.loss)
        add(value, conversion, torch.ones_like(results.loss))
    return found


def zero_in_truth(plan: Plan, kind: str, form: Form, results: whole.WholeResults, error: float) -> bool:
    """Whether all that one device has for a form, and a relative error beside it, is what rounding
    leaves of zero: it moves as far when parameters and data move by a unit in the last place."""
    here = _computed(plan, kind, form, results)
    if here is None or max(float(here.abs().max()), error * scale_of(here)) > SMALLEST_SCALE:
        return False
    near = [_computed(plan, kind, form, other) for other in results.nearby()]
    room = FURTHER * torch.stack([x - here for x in near if x is not None]).abs().max()
    return bool(here.abs().max() <= room) and error * scale_of(here) <= float(room)


def moves_as_far(plan: Plan, kind: str, form: Form, results: whole.WholeResults, error: float) -> bool:
    """Whether rounding explains a relative error of a gradient: one device's own moves as far where
    all that it is computed from moves by a unit in the last place, since the greatest of equal
    numbers (`amax`, a pooled window, `maximum`) or a side of 0 (`relu`) is another one then. A NaN
    that stands elsewhere then has moved without bound."""
    here = _computed(plan, kind, form, results) if "gradient" in kind else None
    if here is None:
        return False
    near = [_computed(plan, kind, form, other) for other in results.nearby()]
    return error * scale_of(here) <= FURTHER * max(_furthest(x, here) for x in near if x is not None)


def _furthest(one: Tensor, other: Tensor) -> float:
    """The greatest difference of two tensors; infinite where one alone is NaN."""
    if bool((one.isnan() != other.isnan()).any()):
        return math.inf
    return float((one - other).nan_to_num(0.0, math.inf, -math.inf).abs().max())


def _computed(plan: Plan, kind: str, form: Form, results: whole.WholeResults) -> Tensor | None:
    """One device's tensor for a form, by the kind of comparison; None for an optimizer's result."""
    if kind == "gradient":
        found = form_gradients(plan, results).get(form)
    else:
        tables = {"stored gradient": results.gradients, "state": results.states, "parameter": {}}
        found = tables.get(kind, results.values).get(form[0])
    return None if found is None or not found.numel() else found.double()


def following(graph: Graph, value: int) -> set[int]:
    """A value and all that are computed from it."""
    found = {value}
    for op in graph.ops:
        if found.intersection(op.operands):
            found.update(op.results)
    return found
