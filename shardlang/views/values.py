"""A plan -> its values by name, each with its forms and the bytes that are sent for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardlang.folds.traffic import sends, sent
from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import Kind
from shardlang.paths.runs import called
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.types.layout import Layout, layout_text


@dataclass(frozen=True, slots=True)
class Form:
    """A value as it is made or stored, then as it is read elsewhere; what a rank that runs it sends
    for it in a step."""

    made: str
    read: tuple[str, ...] = ()
    forward_bytes: int = 0
    backward_bytes: int = 0


@remembered
def forms(plan: Plan) -> Mapping[str, Form]:
    """The name of each value -> its forms. Values within a statement are added to it."""
    found: dict[str, Form] = {}
    for value, layout in plan.produced.items():
        it = plan.graph.values[value]
        if it.kind is not Kind.CONSTANT and (called(it.path) not in found or ":" not in it.path):
            found[called(it.path)] = Form(_made(plan, value, layout))
    for conversion in plan.conversions:
        if sends(plan, conversion):
            name = called(plan.graph.values[conversion.value].path)
            text = written(plan, conversion.value, conversion.to)
            known = found[name]
            if text not in known.read:
                found[name] = replace(known, read=(*known.read, text))
    for each in sent(plan):
        name = called(each.path)
        known = found[name]
        forward, backward = known.forward_bytes + each.forward_bytes, known.backward_bytes + each.backward_bytes
        found[name] = replace(known, forward_bytes=forward, backward_bytes=backward)
    return found


def written(plan: Plan, value: int, layout: Layout) -> str:
    """A layout as a pin writes it: without what microbatches cut."""
    return layout_text(plan.graph.values[value].type, layout, plan.meshes[layout.mesh])


def _made(plan: Plan, value: int, layout: Layout) -> str:
    param, place = plan.params.get(value), plan.memory_of.get(value)
    notes = [zero_text(param)] if param is not None and param.zero else []
    return ", ".join([written(plan, value, layout), *notes, *([f"on the {place}"] if place else [])])


def zero_text(param: ParamPlan) -> str:
    """ZeRO of a parameter, as its rule is written."""
    axes = param.zero_axes[0] if len(param.zero_axes) == 1 else f"({', '.join(param.zero_axes)})"
    return f"zero {param.zero} over {axes}{', keep' * param.keep}"
