"""A plan -> how ranks sum the gradient of a parameter: the collectives, and the bytes that each
rank sends in them.

A parameter of several coordinates along the axis of the stages is tied: its gradient is summed over
these too, when all their backwards are done, since each comes to it in an order of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardlang.frozen.records import remembered
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.parameters import local_bytes, of_alike, part_bytes, row_bytes, stored_type
from shardlang.step.stages import coordinates_of, stages_by_coordinate
from shardlang.types.dim import BYTES


class GradientSum(NamedTuple):
    """A collective over axes, in which a rank sends so many bytes. each: in every microbatch; last:
    when all backwards are done."""

    collective: str
    axes: tuple[str, ...]
    bytes: int
    each: bool = False
    last: bool = False


@remembered
def gradient_sums(plan: Plan) -> Mapping[int, tuple[GradientSum, ...]]:
    """Parameter or state -> the sums of its gradient, in order; over axes of one rank too."""
    return of_alike(plan, _sums)


def summed_bytes(plan: Plan, value: int, of: GradientSum) -> Mapping[frozenset[int], int]:
    """The stages of a parameter that a rank runs -> the bytes that it sends in a step for a sum:
    one of every microbatch comes with the backward of each of them."""
    stages = frozenset(plan.stages_of(value))
    if not of.each:
        return {stages: of.bytes}
    here = (stages.intersection(mine) for mine in stages_by_coordinate(plan))
    return {mine: of.bytes * plan.microbatches * len(mine) for mine in here if mine}


def waits(plan: Plan, value: int) -> bool:
    """Whether a gradient is summed only when all backwards are done."""
    sums = [each for each in gradient_sums(plan)[value] if each.bytes]
    return bool(sums) and all(each.last for each in sums)


def bucket_kind(plan: Plan, param: ParamPlan) -> object:
    """The same for all parameters of a stage that share a bucket (runtime/step/model.py)."""
    zero, place = min(param.zero, 1) + (param.zero >= 2) + (param.zero == 3), plan.memory_of.get(param.value)
    axes = param.stored.mesh, param.reduce_axes, param.zero_axes
    return *axes, zero, stored_type(plan, param), place


def _sums(plan: Plan, param: ParamPlan) -> tuple[GradientSum, ...]:
    if not plan.graph.values[param.value].gradient:
        return ()
    mesh, whole = plan.meshes[param.stored.mesh], local_bytes(plan, param)
    reduced, places = mesh.ranked(param.reduce_axes), len(coordinates_of(plan, param.value))
    tied = places > 1
    stages = (plan.pipeline.axis,) if plan.pipeline is not None and tied else ()
    if not param.zero:
        ranks = mesh.degree(reduced) * places
        by, sent = "all_reduce", sum_bytes(ranks, whole)
        if param.sparse:  # a rank tells how many rows it has, then gives them to each of the others
            by, sent = "all_gather_rows", (ranks - 1) * (row_bytes(plan, param, 1) + BYTES["i64"])
        return (GradientSum(by, (*stages, *reduced), sent, False, tied),) if reduced or tied else ()
    shards = mesh.degree(param.zero_axes)
    part, shared = part_bytes(plan, param, stored_type(plan, param)), [a for a in param.zero_axes if a in reduced]
    each = param.zero >= 2
    if shared and len(shared) < len(param.zero_axes):  # summed before it is cut
        sent = sum_bytes(mesh.degree(reduced) * places, part * shards)
        return (GradientSum("all_reduce", (*stages, *reduced), sent, each and not tied, tied),)
    rest = tuple(a for a in reduced if a not in shared)
    ranks, cut = mesh.degree(rest) * places, mesh.ranked(param.zero_axes)
    first = (GradientSum("reduce_scatter", cut, (shards - 1) * part, each),) if shared else ()
    then = GradientSum("all_reduce", (*stages, *rest), sum_bytes(ranks, part), False, True)
    return (*first, then) if rest or tied else first


def sum_bytes(ranks: int, size: int) -> int:
    """The bytes that each of so many ranks sends to sum `size` bytes."""
    return -(-2 * (ranks - 1) * size // ranks)
