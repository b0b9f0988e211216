"""A plan -> what each axis of its mesh does: the rules that use it, and what is sent over it, with
the seconds that ranks wait for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardlang.cost.predict import predict
from shardlang.plan.bytes.memory import stages_by_coordinate
from shardlang.plan.bytes.traffic import sent
from shardlang.syntax import ast
from shardlang.views.alternatives import StrategyCase, place


def axis_rows(asked: StrategyCase) -> list[dict[str, Any]]:
    """A row for each axis, then one for each group of several over which something is sent. sent:
    by what it is; exposed_s: seconds of a step (None: not known)."""
    plan = asked.plan
    mesh = plan.pipeline.mesh if plan.pipeline is not None else plan.meshes[0].timeless
    bytes, waits = _sent(asked), _waits(asked)
    alone: list[tuple[str, ...]] = [(axis.name,) for axis in mesh.axes]
    groups = [axes for axes in bytes if len(axes) > 1 and {(axis,) for axis in axes} <= {*alone}]
    sizes = {axes: mesh.degree(axes) for axes in (*alone, *groups)}
    return [
        {"axes": list(axes), "size": size, "rules": list(_rules(asked, axes[0])) if len(axes) == 1 else [],
         "sent": [{"what": what, "bytes": count} for what, count in bytes.get(axes, {}).items()],
         "exposed_s": waits.get(axes, 0.0) if waits is not None else None}
        for axes, size in sizes.items()
    ]  # fmt: skip


def _rules(asked: StrategyCase, axis: str) -> Iterator[dict[str, Any]]:
    """The rules that name an axis, but for the mesh."""
    for rule in asked.rules:
        for inner in rule.rules if isinstance(rule, ast.At) else (rule,):
            match inner:
                case ast.Split(axes=uses):
                    named = [use.name.text for use in uses]
                case ast.Zero(axes=names):
                    named = [name.text for name in names]
                case ast.Stages(axis=over):
                    named = [over.text]
                case _:
                    named = []
            if axis in named:
                yield place(rule.span)


def _sent(asked: StrategyCase) -> dict[tuple[str, ...], dict[str, int]]:
    """Axes -> what is sent over them in a step, by a rank at each coordinate of the stages."""
    plan, found = asked.plan, dict[tuple[str, ...], dict[str, int]]()
    lines = [None] if plan.pipeline is None else stages_by_coordinate(plan)
    for each in sent(plan):
        times = sum(mine is None or not each.stages.isdisjoint(mine) for mine in lines)
        count = (each.forward_bytes + each.backward_bytes) * times
        if count:
            row = found.setdefault(each.axes, {})
            row[each.what] = row.get(each.what, 0) + count
    return found


def _waits(asked: StrategyCase) -> dict[tuple[str, ...], float] | None:
    if asked.hardware is None:
        return None
    found: dict[tuple[str, ...], float] = {}
    for (_, axes), seconds in predict(asked.plan, asked.hardware).exposed_s.items():
        found[axes] = found.get(axes, 0.0) + seconds
    return found
