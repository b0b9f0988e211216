"""A parameter of a plan -> the bytes that a rank holds of it, of its gradient and of the state of
its optimizer, and those that it sends where ZeRO cuts it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from shardlang.facts.optimizers import OPTIMIZERS
from shardlang.frozen.records import remembered
from shardlang.graph.graph import Kind
from shardlang.ops.rule import shared_axes
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.plan.rewrite.tables import gradient_lookups
from shardlang.step.blocks.kinds import kinds_of
from shardlang.step.stages import coordinates_of
from shardlang.types.dim import BYTES

Found = TypeVar("Found")


class HeldBytes(NamedTuple):
    """Bytes of a parameter on one rank: itself, its copy in a lower precision or as ZeRO 3 keeps it
    gathered, its gradient, its optimizer's state."""

    itself: int
    copy: int
    gradient: int
    optimizer: int


@remembered
def all_held(plan: Plan) -> Mapping[int, HeldBytes]:
    """The `held_bytes` of every parameter and state."""
    return of_alike(plan, held_bytes)


@remembered
def _alike(plan: Plan) -> Mapping[int, int]:
    """Parameter or state -> the first that has as many bytes, in the same parts."""
    found, first, number = dict[int, int](), dict[object, int](), copies(plan)
    for value, p in plan.params.items():
        places = len(coordinates_of(plan, value))
        held = p.stored, p.reduce_axes, p.zero, p.zero_axes, p.keep, number.get(value), places
        key = kinds_of(plan).form((value, -1))[0], *held, value if p.sparse else -1
        found[value] = first.setdefault(key, value)
    return found


def of_alike(plan: Plan, what: Callable[[Plan, ParamPlan], Found]) -> dict[int, Found]:
    """Parameter or state -> what is found of it, of equal ones once."""
    known = {first: what(plan, plan.params[first]) for first in {*_alike(plan).values()}}
    return {value: known[first] for value, first in _alike(plan).items()}


def held_bytes(plan: Plan, param: ParamPlan, degree: int = 0) -> HeldBytes:
    """The bytes that a rank holds for a parameter or state. Where forward reads a copy, all levels
    of ZeRO leave only rows of the parameter itself. degree: in how many parts ZeRO cuts, if that is
    not the plan's."""
    value, whole = plan.graph.values[param.value], local_bytes(plan, param)
    part = -(-whole // zero_degree(plan, param, degree))
    low = value.kind is Kind.PARAM and value.type.dtype != stored_type(plan, param)
    copy = plan.local_bytes(param.value, param.stored) if param.keep or (low and param.zero < 3) else 0
    itself = part if param.zero == 3 or copy else whole
    if value.kind is not Kind.PARAM or not value.gradient:
        return HeldBytes(itself, copy, 0, 0)
    gradient = row_bytes(plan, param) if param.sparse else part if param.zero >= 2 else whole
    return HeldBytes(itself, copy, gradient, copies(plan).get(param.value, 0) * (part if param.zero >= 1 else whole))


def row_bytes(plan: Plan, param: ParamPlan, members: int = 0) -> int:
    """The most that a gradient of rows is: an id and a row for each that so many members look up,
    no row twice; by default all that the rows are sent to."""
    rows, *rest = plan.local_shape(param.value, param.stored)
    each = math.prod(rest) * BYTES[plan.graph.values[param.value].type.dtype] + BYTES["i64"]
    members = members or plan.meshes[param.stored.mesh].degree(param.reduce_axes)
    return min(rows, looked_up(plan, param) * members) * each


def gradient_bytes(plan: Plan, param: ParamPlan) -> int:
    """Bytes of a parameter's gradient on the device, in the parameter's own type."""
    if param.value in plan.memory_of:
        return 0
    return row_bytes(plan, param) if param.sparse else local_bytes(plan, param)


def looked_up(plan: Plan, param: ParamPlan) -> int:
    """How many rows of a table get a gradient on a rank in a step, in all microbatches together;
    where rows are exchanged, how many it may be asked for."""
    found, lookups = 0, gradient_lookups(plan.graph, param.value)
    for op in plan.ops:
        if op.op in lookups:
            ids, shared = op.operands[0], shared_axes(plan.graph.ops[op.op].rule, op.factor_axes)
            asking = plan.meshes[ids.layout.mesh].degree(shared)
            found += math.prod(plan.local_shape(ids.value, ids.layout)) * asking
    return found * plan.microbatches


def local_bytes(plan: Plan, param: ParamPlan) -> int:
    """Bytes of a stored parameter on one rank, before ZeRO."""
    return math.prod(plan.local_shape(param.value, param.stored)) * BYTES[stored_type(plan, param)]


def stored_type(plan: Plan, param: ParamPlan) -> str:
    """The element type of a parameter itself: what is used in a lower precision is kept in f32."""
    type = plan.graph.values[param.value].type
    return "f32" if type.floating and BYTES[type.dtype] < BYTES["f32"] else type.dtype


def zero_degree(plan: Plan, param: ParamPlan, degree: int = 0) -> int:
    """In how many parts ZeRO cuts a parameter: no more than dim 0 has rows."""
    shape = plan.local_shape(param.value, param.stored) if param.zero else ()
    return min(degree or plan.meshes[param.stored.mesh].degree(param.zero_axes), shape[0]) if shape else 1


@remembered
def copies(plan: Plan) -> dict[int, int]:
    """Parameter -> how many copies of it its optimizer keeps, with the average of `ema`."""
    found: dict[int, int] = {}
    for setting in plan.program.training.optimizers if plan.program.training else ():
        kept = setting.own.state if setting.own is not None else OPTIMIZERS[setting.kind].kept(setting.arguments)
        average = plan.program.training is not None and plan.program.training.ema is not None
        found.update(dict.fromkeys(setting.params, len(kept) + average))
    return found


def part_bytes(plan: Plan, param: ParamPlan, dtype: str = "") -> int:
    """Bytes of the rows that ZeRO sends for one rank, padded to the first's, as `dtype`."""
    rows, *rest = plan.local_shape(param.value, param.stored) or (1,)
    each = math.prod(rest) * BYTES[dtype or plan.graph.values[param.value].type.dtype]
    return -(-rows // plan.meshes[param.stored.mesh].degree(param.zero_axes)) * each
