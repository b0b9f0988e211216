"""Bytes that a plan keeps on each rank: parameters and their copies (in a lower precision, or
gathered), gradients, optimizer state, activations, the largest over the ranks.

An estimate before any run: allocators, buffers of collectives and temporaries are not counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import add
from typing import NamedTuple, TypeVar

from shardlang.facts.actions import Action
from shardlang.facts.optimizers import OPTIMIZERS
from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import Kind
from shardlang.ops.rule import shared_axes
from shardlang.plan.blocks.kinds import kinds_of
from shardlang.plan.bytes.saved_activations import saved_activations
from shardlang.plan.bytes.zero3_gathers import orders
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.plan.rewrite.tables import gradient_lookups
from shardlang.types.dim import BYTES

Found = TypeVar("Found")

# Optimizer state in copies of the parameter.


@dataclass(frozen=True, slots=True)
class Memory:
    """All in bytes per rank, in one memory or in both; host: the part in the host's memory."""

    parameters: int
    copies: int
    gradients: int
    optimizer: int
    activations: int
    host: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.copies + self.gradients + self.optimizer + self.activations

    @property
    def device(self) -> int:
        return self.total - self.host


class HeldBytes(NamedTuple):
    """Bytes of a parameter on one rank: itself, its copy in a lower precision or as ZeRO 3 keeps it
    gathered, its gradient, its optimizer's state."""

    itself: int
    copy: int
    gradient: int
    optimizer: int


def memory(plan: Plan, stages: Collection[int] | None = None) -> Memory:
    """The memory of a rank when most activations are alive: of `stages`, by default of the
    coordinate that holds most."""
    if stages is None and plan.pipeline is not None:
        return max(by_coordinate(plan), key=lambda m: m.total)
    mine = [held for at, held in _held_by_stages(plan).items() if stages is None or not at.isdisjoint(stages)]
    # A stage's host memory has what its own operators leave there; they are few, and counted with
    # the parameters'.
    parameters, copies, gradients, optimizer = (sum(each[i] for each in mine) for i in range(4))
    gathered = (step.most for at, step in orders(plan).steps.items() if stages is None or not {*at}.isdisjoint(stages))
    copies += max(gathered, default=0)
    hosted = (value for value in plan.memory_of if value in plan.params)
    host = sum(sum(all_held(plan)[value]) * plan.graph.values[value].times for value in hosted)
    waiting = most_saved(plan, saved_activations(plan).on_host, stages)
    kept = activations(plan, stages) + waiting
    return Memory(parameters, copies, gradients, optimizer, kept, host + hosted_activations(plan) + waiting)


@remembered
def by_coordinate(plan: Plan) -> list[Memory]:
    """The memory of a rank at each coordinate along the axis of the stages."""
    if plan.pipeline is None:
        return [memory(plan)]
    return [memory(plan, mine) for mine in stages_by_coordinate(plan)]


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


@remembered
def _held_by_stages(plan: Plan) -> Mapping[frozenset[int], HeldBytes]:
    """Stages -> the bytes of all parameters and states that just these use."""
    found: dict[frozenset[int], HeldBytes] = {}
    for value, held in all_held(plan).items():
        at = frozenset(plan.pipeline.param_stages.get(value, ()) if plan.pipeline else (0,))
        all_layers = [size * plan.graph.values[value].times for size in held]
        found[at] = HeldBytes(*map(add, found.get(at, (0, 0, 0, 0)), all_layers))
    return found


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


def hosted_activations(plan: Plan) -> int:
    """Bytes that operators on the host keep for backward, and the fields that they read."""
    if not plan.memory_of:
        return 0
    found = saved_activations(plan)
    return found.hosted + sum(found.data(v) for v in plan.graph.data if v in plan.memory_of and v in plan.produced)


def stages_by_coordinate(plan: Plan) -> list[tuple[int, ...]]:
    """Per coordinate along the axis of the stages, the stages that it runs."""
    assert plan.pipeline is not None
    on, count = plan.pipeline.coordinates, plan.pipeline.mesh.axis_size(plan.pipeline.axis)
    return [tuple(s for s, c in enumerate(on) if c == coordinate) for coordinate in range(count)]


def coordinates_of(plan: Plan, value: int) -> frozenset[int]:
    """The coordinates along the axis of the stages that use a parameter, state or field; 0 alone
    without stages."""
    if plan.pipeline is None:
        return frozenset((0,))
    return frozenset(plan.pipeline.coordinates[stage] for stage in plan.pipeline.param_stages.get(value, ()))


def used(plan: Plan, value: int, stages: Collection[int] | None) -> bool:
    """Whether one of `stages` (None: all) uses a parameter, state or field."""
    if stages is None or plan.pipeline is None:
        return True
    return not set(plan.pipeline.param_stages.get(value, ())).isdisjoint(stages)


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


def activations(plan: Plan, stages: Collection[int] | None = None) -> int:
    """The most that is kept for backward at one time: of each microbatch that is under way its
    part, by the order of the schedule; of layers that are computed again only what goes in and out,
    and one of them whole. Data once."""
    found = saved_activations(plan)
    data = sum(found.data(v) for v in plan.graph.data if v in plan.produced and used(plan, v, stages))
    return data + most_saved(plan, found.of, stages) + max(found.again(s) for s in _stages(plan, stages))


def most_saved(plan: Plan, of: Callable[[int], int], stages: Collection[int] | None = None) -> int:
    """The most of what a microbatch saves in a stage (`of`) that is there at one time, by the order
    of the schedule."""
    if plan.pipeline is None:
        return of(0)
    each = {s: of(s) for s in _stages(plan, stages)}
    on = {plan.pipeline.coordinates[s] for s in each}
    lines = [[a for a in plan.pipeline.actions[place] if a.stage in each] for place in on]
    return max(peak(line, each) for line in lines)


def _stages(plan: Plan, stages: Collection[int] | None) -> Collection[int]:
    return range(len(plan.pipeline.coordinates)) if plan.pipeline and stages is None else stages or (0,)


def peak(line: Sequence[Action], each: Mapping[int, int]) -> int:
    """The most that one coordinate keeps at a time; a microbatch of stage s counts `each[s]`."""
    now = most = 0
    for action in line:
        if action.forward:
            now += each[action.stage]
            most = max(most, now)
        elif action.to_parameters:
            now -= each[action.stage]
    return most
