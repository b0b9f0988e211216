"""A plan -> the communicators of NCCL that a rank is in, and the bytes it takes for them.

NCCL keeps buffers for each channel and connection of a communicator. Their number depends on its
version and on the machine, and no document of NVIDIA's gives the sum. So these are what was seen,
on 4 and 8 GPUs joined by NVLink; a file may say another number (`communicator` in `device`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from shardlang.folds.traffic import handed_bytes, sent
from shardlang.frozen.records import dataclass, remembered
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.stages import coordinates_of, stages_by_coordinate, used

# Of a group of two, and of more: github.com/NVIDIA/nccl/issues/964. Beyond two nodes it does not
# grow: issues/864.
PAIR: Final = 544 << 20
MORE: Final = 688 << 20
# For each member that is sent to apart from a ring or a tree: 32 channels of 10 MiB and of twice 2
# MiB (github.com/NVIDIA/nccl/issues/1685).
PEER: Final = 32 * (14 << 20)


@dataclass(frozen=True, slots=True)
class Communicator:
    """ranks: its members. peers: the most of them that a rank sends to apart from a ring."""

    ranks: int
    peers: int = 0

    def bytes(self, each: int, node: int) -> int:
        """each: what the file says that one takes (0: nothing). node: the ranks of a node, beyond
        which all peers share a buffer."""
        ring = each or (PAIR if self.ranks == 2 else MORE)
        return ring + PEER * max(0, min(self.peers, node - 1))


@remembered
def communicators(plan: Plan) -> tuple[tuple[Communicator, ...], ...]:
    """Those of a rank, for each coordinate along the axis of the stages: of all ranks, of axes that
    something is sent over, and one for each direction of the messages of two stages; at the end one
    more, by which the first rank takes the weights of one stage after the other. Ranks of a
    coordinate may differ: these are of the one that has most."""
    mine = stages_by_coordinate(plan)
    if plan.ranks == 1:
        return ((),) * len(mine)
    return tuple(_of(plan, at, frozenset(stages)) for at, stages in enumerate(mine))


def _of(plan: Plan, coordinate: int, stages: frozenset[int]) -> tuple[Communicator, ...]:
    sizes = {axis.name: axis.size for mesh in plan.meshes for axis in mesh.axes}
    found: dict[object, Communicator] = {"all": Communicator(plan.ranks)}
    for axes, joined, peers in _over(plan, stages):
        ranks = math.prod(sizes[axis] for axis in axes) * len(joined)
        at: object = "all" if ranks == plan.ranks else (frozenset(axes), joined if len(joined) > 1 else ())
        before = found.get(at, Communicator(ranks))
        if ranks > 1:
            found[at] = Communicator(ranks, max(before.peers, peers and ranks - 1))
    found.update({edge: Communicator(2) for edge in channels(plan.coordinates, _channels(plan), coordinate)})
    return tuple(found.values())


def channels(on: Sequence[int], messages: Collection[tuple[int, int]], at: int) -> list[tuple[int, int]]:
    """The directions of messages that a coordinate has a group for. on: the coordinates of all
    stages; messages: (from, to) of those of a step."""
    mine = [edge for edge in messages if at in edge]
    ends = [(each, 0) for each in dict.fromkeys(on) if each and at in (0, each) and (each, 0) not in messages]
    return [*mine, *ends[:1]]


def _over(plan: Plan, stages: frozenset[int]) -> Iterator[tuple[tuple[str, ...], tuple[int, ...], bool]]:
    """The axes that something is sent over, the coordinates whose members are joined, and whether
    each member sends to each."""
    for each in sent(plan):
        if each.axes and each.what != "gradients" and "send" not in each.collectives and each.stages & stages:
            yield each.axes, (0,), "all_to_all" in each.collectives
    for param in plan.params.values():
        if used(plan, param.value, stages) and plan.graph.values[param.value].gradient:
            joined = tuple(sorted(coordinates_of(plan, param.value)))
            yield from ((axes, joined, False) for axes in _reduced(plan, param) if axes or len(joined) > 1)


def _reduced(plan: Plan, param: ParamPlan) -> Iterator[tuple[str, ...]]:
    """The axes over which a parameter's gradient is summed, and ZeRO gathers."""
    mesh = plan.meshes[param.stored.mesh]
    zero = mesh.ranked(param.zero_axes) if param.zero else ()
    yield from (axes for axes in (zero, tuple(a for a in mesh.ranked(param.reduce_axes) if a not in zero)) if axes)
    if not zero and not mesh.ranked(param.reduce_axes):
        yield ()


@remembered
def _channels(plan: Plan) -> frozenset[tuple[int, int]]:
    """The coordinates (from, to) of messages between stages in a step."""
    on, found = plan.coordinates, set[tuple[int, int]]()
    for planned in plan.ops:
        if plan.graph.ops[planned.op].operator == TRANSFER:
            forward, backward = handed_bytes(plan, planned)
            there = on[plan.stage(planned.op) - 1], on[plan.stage(planned.op)]
            found |= {there} if forward else set()
            found |= {there[::-1]} if backward else set()
    return frozenset(found)
