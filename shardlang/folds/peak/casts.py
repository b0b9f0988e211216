"""Parameters in a lower precision -> which of their gradients are cast together, as
runtime/state/copies.py does it: that of a vector with that of the matrix read right before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from shardlang.frozen.records import remembered
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form
from shardlang.step.parameters import all_held
from shardlang.step.stages import coordinates_of
from shardlang.step.units import parameters_read


def cast_together(plan: Plan, stage: int, steps: Sequence[Step]) -> Mapping[tuple[int, Form], int]:
    """A step of a stage and the vector that it reads -> the step that reads its matrix, by their
    numbers: the gradient of the vector waits for that of the matrix."""
    coordinate = plan.coordinates[stage]
    vectors, found, before = _vectors(plan).get(coordinate, {}), dict[tuple[int, Form], int](), (-1, -1)
    reads = ((at, value) for at, step in enumerate(steps) for value in parameters_read(plan, step))
    for at, value in reads if vectors else ():
        if value not in vectors:
            continue
        if vectors.get(before[1], -1) == value:
            found[at, (value, -1)] = before[0]
        before = at, value
    return found


@remembered
def _vectors(plan: Plan) -> Mapping[int, Mapping[int, int]]:
    """Coordinate along the axis of the stages -> each parameter that has a copy there, with the
    vector that may be cast with it; -1 for none."""
    values, there = plan.graph.values, dict[int, list[int]]()
    for value, held in all_held(plan).items():
        for coordinate in coordinates_of(plan, value) if held.copy and plan.params[value].zero < 3 else ():
            there.setdefault(coordinate, []).append(value)
    found = {coordinate: dict.fromkeys(copies, -1) for coordinate, copies in there.items()}
    for coordinate, copies in there.items():
        for matrix, vector in pairwise(copies):
            kinds = {(values[v].gradient, plan.memory_of.get(v), values[v].path.rpartition(".")[0])
                     for v in (matrix, vector)}  # fmt: skip
            ranks = len(values[matrix].type.dims), len(values[vector].type.dims)
            if len(kinds) == 1 and values[matrix].gradient and ranks[0] > 1 == ranks[1]:
                found[coordinate][matrix] = vector
    return found
