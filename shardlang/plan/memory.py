"""Bytes that a plan keeps on each rank: parameters, gradients, optimizer state, activations, the largest over the
ranks.

An estimate before any run: allocators, buffers of collectives and temporaries are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlang.graph.graph import Kind
from shardlang.plan.assignment import local_size
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.types.dim import BYTES

# Optimizer state in copies of the parameter.
COPIES = {"adam": 2, "adamw": 2}


@dataclass(frozen=True, slots=True)
class Memory:
    """All in bytes per rank."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations


def memory(plan: Plan) -> Memory:
    """What one rank holds at the end of its forward pass, when activations and gradients meet."""
    copies = _copies(plan)
    parameters = gradients = optimizer = 0
    for param in plan.params.values():
        whole = local_bytes(plan, param)
        part = -(-whole // zero_degree(plan, param))
        parameters += part if param.zero == 3 else whole
        if plan.graph.values[param.value].kind is Kind.PARAM and plan.graph.values[param.value].gradient:
            gradients += part if param.zero >= 2 else whole
            optimizer += copies.get(param.value, 0) * (part if param.zero >= 1 else whole)
    return Memory(parameters, gradients, optimizer, activations(plan))


def local_bytes(plan: Plan, param: ParamPlan) -> int:
    """Bytes of a stored parameter on one rank, before ZeRO."""
    type = plan.graph.values[param.value].type
    return local_size(type.shape, param.stored, plan.meshes[param.stored.mesh]) * BYTES[type.dtype]


def zero_degree(plan: Plan, param: ParamPlan) -> int:
    """In how many parts ZeRO cuts a parameter: no more than dim 0 has rows."""
    type = plan.graph.values[param.value].type
    if not param.zero or not type.shape:
        return 1
    mesh = plan.meshes[param.stored.mesh]
    rows = -(-type.shape[0] // mesh.degree(param.stored.dims[0]))
    return min(mesh.degree(param.zero_axes), rows)


def _copies(plan: Plan) -> dict[int, int]:
    """Parameter -> how many copies of it its optimizer keeps."""
    found: dict[int, int] = {}
    for setting in plan.program.training.optimizers if plan.program.training else ():
        sgd = 1 if setting.kind == "sgd" and setting.arguments.get("momentum") else 0
        found.update(dict.fromkeys(setting.params, COPIES.get(setting.kind, sgd)))
    return found


def activations(plan: Plan) -> int:
    """Every result and converted form that takes part in the gradient, kept until backward; data once."""
    total = 0
    values = plan.graph.values
    for value, layout in plan.produced.items():
        kept = values[value].kind is Kind.DATA or (values[value].kind is Kind.RESULT and values[value].gradient)
        if kept:
            total += (
                local_size(values[value].type.shape, layout, plan.meshes[layout.mesh]) * BYTES[values[value].type.dtype]
            )
    for conversion in plan.conversions:
        it, layout = values[conversion.value], conversion.to
        if conversion.gradient and it.gradient and conversion.move.forward_bytes:
            total += local_size(it.type.shape, layout, plan.meshes[layout.mesh]) * BYTES[it.type.dtype]
    return total


def sent_bytes(plan: Plan) -> tuple[int, int]:
    """Bytes each rank sends in one step, forward and backward (deferred reductions of gradients count as backward)."""
    forward = sum(c.move.forward_bytes for c in plan.conversions)
    backward = sum(c.move.backward_bytes for c in plan.conversions)
    for op in plan.ops:
        forward += sum(x[2] for x in op.inside)
        backward += sum(x[3] for x in op.inside)
    for param in plan.params.values():
        more_forward, more_backward = reduction_bytes(plan, param)
        forward, backward = forward + more_forward, backward + more_backward
    return forward, backward


def reduction_bytes(plan: Plan, param: ParamPlan) -> tuple[int, int]:
    """Forward (ZeRO's gathering of parameters) and backward bytes of one parameter's gradient reduction."""
    mesh = plan.meshes[param.stored.mesh]
    local = local_bytes(plan, param)
    zero = mesh.degree(tuple(a for a in param.zero_axes))
    gather = -(-(zero - 1) * local // zero) if param.zero else 0
    ranks = mesh.degree(mesh.ranked(param.reduce_axes))
    if not plan.graph.values[param.value].gradient or ranks == 1:
        return gather, 0
    if param.zero >= 2:
        rest = math.prod(mesh.axis_size(a) for a in mesh.ranked(param.reduce_axes) if a not in param.zero_axes)
        scattered = -(-(zero - 1) * local // zero)
        return gather, scattered + -(-2 * (rest - 1) * (local // zero) // rest)
    return gather, -(-2 * (ranks - 1) * local // ranks)
