"""Parameters, gradients and state that optimizers of the user's own gather, whole or as rows, from
the ranks that have the rest, once a step."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.frozen.records import dataclass, remembered
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.parameters import local_bytes, part_bytes, stored_type


@dataclass(frozen=True, slots=True)
class Gathered:
    """Over which axes a parameter is gathered, and the bytes that a rank sends for it."""

    axes: tuple[str, ...]
    sent: int


@remembered
def gathered(plan: Plan) -> Mapping[int, Gathered]:
    """Parameter -> what is gathered for its optimizer, where that needs more than a rank has."""
    training = plan.program.training
    own = [(o.own, v) for o in (training.optimizers if training else ()) if o.own is not None for v in o.params]
    found = {}
    for decl, value in own:
        param = plan.params.get(value)
        axes = _axes(plan, param, decl.needs) if param is not None else ()
        if param is not None and axes:
            degree = plan.meshes[param.stored.mesh].degree(axes)
            part = part_bytes(plan, param, stored_type(plan, param)) if param.zero else local_bytes(plan, param)
            found[value] = Gathered(axes, (degree - 1) * part * (2 + len(decl.state)))
    return found


def _axes(plan: Plan, param: ParamPlan, needs: str) -> tuple[str, ...]:
    if needs == "elements":
        return ()
    rows = needs == "rows"
    cut = [axis for dim, axes in enumerate(param.stored.dims) if dim or not rows for axis in axes]
    wanted = {*cut, *(param.zero_axes if param.zero and not rows else ())}
    mesh = plan.meshes[param.stored.mesh]
    return mesh.ranked(tuple(axis.name for axis in mesh.axes if axis.name in wanted))
