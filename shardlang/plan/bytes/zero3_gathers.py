"""How often ZeRO 3 gathers each parameter in a microbatch: at each use in forward, and in backward
for what reads it.

As the runtime does (runtime/state/zero3.py): a pass brings parameters in the order of their uses,
several in a collective of at most `bucket gradients` bytes, and one that is used again while its
collective is open is there already."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from shardlang.plan.bytes.saved_activations import saved_activations
from shardlang.plan.plan import MoveKind, ParamPlan, Plan, Step
from shardlang.plan.reads import inputs, made_form
from shardlang.plan.rewrite.recomputed_steps import Owners
from shardlang.records import remembered
from shardlang.types.dim import BYTES


class Gathered:
    """Parameter (value id) -> how many times it comes in one microbatch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.forward: Counter[int] = Counter()
        self.backward: Counter[int] = Counter()
        if any(param.zero == 3 for param in plan.params.values()):
            self._saved = saved_activations(plan).saved
            self._owners = Owners(plan, plan.steps)
            for stage in range(len(plan.pipeline.coordinates) if plan.pipeline else 1):
                steps = [step for step in plan.steps if self._stage(step) in (stage, -1)]
                self.forward += brought(plan, [p for step in steps for p in self._read(step)])
                self.backward += brought(plan, list(self._again(steps)))

    def _stage(self, step: Step) -> int:
        """The stage of an operator; -1 for a conversion, which counts with its reader."""
        return self.plan.stage(self.plan.ops[step.index].op) if step.kind == "op" else -1

    def _read(self, step: Step) -> Iterator[int]:
        """The parameters that a line reads; a view is no line."""
        if step.kind == "op" or self.plan.conversions[step.index].move.kind is not MoveKind.VIEW:
            for value, at in inputs(self.plan)[step]:
                if made_form(self.plan, at) < 0 and value in self.plan.params:
                    yield value

    def _again(self, steps: Sequence[Step]) -> Iterator[int]:
        """The parameters that backward reads, from the last operator to the first; of what is
        computed again what its forward does."""
        inside: dict[int, list[Step]] = {}
        for step in steps:
            group = self._owners.of(step)
            if group is not None:
                inside.setdefault(group, []).append(step)
        for step in reversed(steps):
            group = self._owners.of(step)
            if group is None and step.kind == "op":
                yield from reversed(self._saved.get(self.plan.ops[step.index].op, ()))
            elif group in inside:
                yield from (p for other in inside.pop(group) for p in self._read(other))


@remembered
def gathered(plan: Plan) -> Gathered:
    """How often each parameter comes."""
    return Gathered(plan)


def brought(plan: Plan, uses: Sequence[int]) -> Counter[int]:
    """How often each parameter comes where they are used in this order."""
    found: Counter[int] = Counter()
    here: Collection[int] = ()
    kind, size = None, 0
    for value in uses:
        param = plan.params[value]
        if param.zero != 3 or param.keep:
            continue
        mine = param.stored.mesh, param.zero_axes, plan.graph.values[value].type.dtype
        if kind == mine and value in here:
            continue
        whole = plan.local_bytes(value, param.stored)
        size += whole
        if kind != mine or size > plan.bucket_bytes:
            here, kind, size = set(), mine, whole
        here = {*here, value}
        found[value] += 1
    return found


def part_bytes(plan: Plan, param: ParamPlan, dtype: str = "") -> int:
    """Bytes of the rows that ZeRO sends for one rank, padded to the first's, as `dtype`."""
    rows, *rest = plan.local_shape(param.value, param.stored) or (1,)
    each = math.prod(rest) * BYTES[dtype or plan.graph.values[param.value].type.dtype]
    return -(-rows // plan.meshes[param.stored.mesh].degree(param.zero_axes)) * each
