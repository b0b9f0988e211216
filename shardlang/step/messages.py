"""A plan -> the bytes of the messages between stages."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.frozen.records import remembered
from shardlang.plan.plan import Plan
from shardlang.plan.reads import transfers


@remembered
def handed(plan: Plan) -> Mapping[int, tuple[int, int]]:
    """An operator (id) that hands a value to the next stage -> its bytes in a microbatch, and those
    of its gradient."""
    found, values = {}, plan.graph.values
    for planned in transfers(plan):
        value = plan.graph.ops[planned.op].results[0]
        size = plan.local_bytes(value, planned.results[0])
        found[planned.op] = size, size * values[value].gradient
    return found


@remembered
def messages(plan: Plan) -> Mapping[int, tuple[int, int]]:
    """Stage -> bytes of the values that it receives in a microbatch, and of their gradients."""
    found = dict.fromkeys(range(len(plan.coordinates)), (0, 0))
    for op, (there, back) in handed(plan).items():
        before = found[plan.stage(op)]
        found[plan.stage(op)] = before[0] + there, before[1] + back
    return found
