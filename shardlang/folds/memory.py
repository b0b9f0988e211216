"""Bytes that a plan keeps on each rank: parameters and their copies (in a lower precision, or
gathered), gradients, optimizer state, activations, the largest over the ranks.

An estimate before any run: allocators, buffers of collectives and temporaries are not counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import add

from shardlang.facts.actions import Action
from shardlang.frozen.records import dataclass, remembered
from shardlang.plan.plan import Plan
from shardlang.step.parameters import HeldBytes, all_held
from shardlang.step.saved_activations import saved_activations
from shardlang.step.stages import stages_by_coordinate, used
from shardlang.step.zero3_gathers import orders


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


def memory(plan: Plan, stages: Collection[int] | None = None) -> Memory:
    """The memory of a rank when most activations are alive: of `stages`, by default of the
    coordinate that holds most."""
    if stages is None:
        return max(by_coordinate(plan), key=lambda m: m.total)
    mine = [held for at, held in _held_by_stages(plan).items() if not at.isdisjoint(stages)]
    # A stage's host memory has what its own operators leave there; they are few, and counted with
    # the parameters'.
    parameters, copies, gradients, optimizer = (sum(each[i] for each in mine) for i in range(4))
    gathered = (step.most for at, step in orders(plan).steps.items() if not {*at}.isdisjoint(stages))
    copies += max(gathered, default=0)
    hosted = (value for value in plan.memory_of if value in plan.params)
    host = sum(sum(all_held(plan)[value]) * plan.graph.values[value].times for value in hosted)
    waiting = most_saved(plan, saved_activations(plan).on_host, stages)
    kept = activations(plan, stages) + waiting
    return Memory(parameters, copies, gradients, optimizer, kept, host + hosted_activations(plan) + waiting)


@remembered
def by_coordinate(plan: Plan) -> list[Memory]:
    """The memory of a rank at each coordinate along the axis of the stages."""
    return [memory(plan, mine) for mine in stages_by_coordinate(plan)]


@remembered
def _held_by_stages(plan: Plan) -> Mapping[frozenset[int], HeldBytes]:
    """Stages -> the bytes of all parameters and states that just these use."""
    found: dict[frozenset[int], HeldBytes] = {}
    for value, held in all_held(plan).items():
        at = frozenset(plan.stages_of(value))
        all_layers = [size * plan.graph.values[value].times for size in held]
        found[at] = HeldBytes(*map(add, found.get(at, (0, 0, 0, 0)), all_layers))
    return found


def hosted_activations(plan: Plan) -> int:
    """Bytes that operators on the host keep for backward, and the fields that they read."""
    if not plan.memory_of:
        return 0
    found = saved_activations(plan)
    return found.hosted + sum(found.data(v) for v in plan.graph.data if v in plan.memory_of and v in plan.produced)


def activations(plan: Plan, stages: Collection[int] | None = None) -> int:
    """The most that is kept for backward at one time: of each microbatch that is under way its
    part, by the order of the schedule; of layers that are computed again only what goes in and out,
    and one of them whole. Data once."""
    found, stages = saved_activations(plan), range(len(plan.coordinates)) if stages is None else stages
    data = sum(found.data(v) for v in plan.graph.data if v in plan.produced and used(plan, v, stages))
    return data + most_saved(plan, found.of, stages) + max(map(found.again, stages), default=0)


def most_saved(plan: Plan, of: Callable[[int], int], stages: Collection[int]) -> int:
    """The most of what a microbatch saves in a stage (`of`) that is there at one time, by the order
    of the schedule."""
    each = {s: of(s) for s in stages}
    on = {plan.coordinates[s] for s in each}
    return max((peak([a for a in plan.actions[at] if a.stage in each], each) for at in on), default=0)


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
