"""A plan and a layer, or values that are laid out in different ways -> why it is laid out so: the
rules that decided, what it computes and sends, its values, and what else it could be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from shardlang.cost.items import class_of
from shardlang.cost.planned import work
from shardlang.cost.predict import operators
from shardlang.cost.prices import Prices
from shardlang.cost.timeline import course
from shardlang.folds.traffic import sent
from shardlang.graph.graph import Kind
from shardlang.paths.runs import called, in_runs
from shardlang.plan.plan import Plan
from shardlang.step.saved_activations import again
from shardlang.views.alternatives import Entry, StrategyCase
from shardlang.views.values import forms

_NUMBER = re.compile(r"\[\d+\]")
# Dims of a layer whose other splits are planned: those of which it has most tensors.
_MOST_DIMS = 6


def rows(plan: Plan, decided: Mapping[int, Entry]) -> list[Entry]:
    """The values, those of layers that are alike in one row. Bytes are those of all of these."""
    every, alike = forms(plan), dict[object, list[int]]()
    for value in decided:
        path = called(plan.graph.values[value].path)
        if path in every:
            form = every[path]
            key = class_of(path), form.made, form.read, str(decided[value])
            alike.setdefault(key, []).append(value)
    return [_row(plan, mine, decided[mine[0]]) for mine in alike.values()]


def _row(plan: Plan, values: Sequence[int], decided: Entry) -> Entry:
    paths = list(dict.fromkeys(called(plan.graph.values[value].path) for value in values))
    mine = [forms(plan)[path] for path in paths]
    return {
        "name": ", ".join(in_runs(paths)), "layout": mine[0].made, "read": list(mine[0].read), "decided": decided,
        "forward_bytes": sum(f.forward_bytes for f in mine), "backward_bytes": sum(f.backward_bytes for f in mine),
    }  # fmt: skip


def decided_by(decided: Mapping[int, Entry]) -> Entry:
    """The rules that decided any of the values, each once."""
    rules = {(rule["source"], rule["text"]): rule for each in decided.values() for rule in each["rules"]}
    kinds = {each["by"] for each in decided.values()}
    by = kinds.pop() if len(kinds) == 1 else "layer" if rules else "propagated"
    return {"by": by, "rules": list(rules.values())}


def sends(plan: Plan, values: Sequence[int]) -> list[Entry]:
    """The bytes sent for the values in a step, by collectives and axes, the most first."""
    paths = {plan.graph.values[value].path for value in values}
    paths |= {plan.graph.ops[op].path for value in values if (op := plan.graph.producers.get(value)) is not None}
    found: dict[tuple[tuple[str, str], tuple[str, ...]], list[int]] = {}
    for each in sent(plan):
        if each.path in paths and each.forward_bytes + each.backward_bytes:
            both = found.setdefault((each.collectives, each.axes), [0, 0])
            both[0] += each.forward_bytes
            both[1] += each.backward_bytes
    ordered = sorted(found.items(), key=lambda row: -sum(row[1]))
    return [collective(by, axes, None, (forward, backward)) for (by, axes), (forward, backward) in ordered]


def collective(
    by: tuple[str, str], axes: Sequence[str], to: str | None, sizes: tuple[int, int],
    seconds: tuple[float, float] | None = None,
) -> Entry:  # fmt: skip
    """The entry of something sent: forward and backward by `by`, with the seconds and those that
    are waited for."""
    whole, exposed = seconds if seconds is not None else (None, None)
    return {
        "forward": by[0], "backward": by[1], "axes": list(axes), "to": to, "forward_bytes": sizes[0],
        "backward_bytes": sizes[1], "seconds": whole, "exposed_s": exposed,
    }  # fmt: skip


def takes(asked: StrategyCase, values: Sequence[int]) -> Entry | None:
    """Seconds of a step that operators of the values take, and those of all that are alike, at the
    coordinate where they take longest; None without speeds."""
    if asked.hardware is None:
        return None
    graph, found = asked.plan.graph, list[tuple[float, float]]()
    classes = {class_of(graph.values[value].path) for value in values}
    classes |= {class_of(graph.ops[op].path) for value in values if (op := graph.producers.get(value)) is not None}
    for line in course(Prices(work(asked.plan), asked.hardware), asked.hardware.overlap).lines:
        mine = [part for where, part in operators(line).items() if where.path in classes]
        found.append((sum(part.compute_s for part in mine), sum(part.exposed_s for part in mine)))
    at = max(range(len(found)), key=lambda n: (sum(found[n]), -n))
    return {"compute_s": found[at][0], "exposed_s": found[at][1], "coordinate": at}


# --- alternatives ---


def others(asked: StrategyCase, name: str, values: Sequence[int]) -> Iterator[Entry]:
    """Each dim of the layer over each axis that does not cut it, then recomputation."""
    plan = asked.plan
    if asked.strategy is None or plan.ranks == 1:
        return
    for dim, axis in _splits(asked, values):
        yield asked.replaced(f"at {name}: split {dim} over {axis}")
    layers = {text for call in plan.graph.calls for text in (call.path, _NUMBER.sub("[*]", call.path))}
    if name in layers and not any(plan.graph.producers.get(value) in again(plan) for value in values):
        for what in ("", " all but products"):
            yield asked.replaced(f"at {name}: recompute{what}")


def _splits(asked: StrategyCase, values: Sequence[int]) -> list[tuple[str, str]]:
    """(dim, axis): where no tensor of the layer has the dim cut over the axis."""
    plan, graph = asked.plan, asked.plan.graph
    names = {id(dim): name for name, dims in reversed([*graph.dims.items()]) for dim in dims if "." not in name}
    cut: dict[str, set[str]] = {}
    tensors: dict[str, int] = {}
    for value in values:
        if value not in plan.produced or graph.values[value].kind is Kind.CONSTANT:
            continue
        for term, over in zip(graph.values[value].type.dims, plan.produced[value].dims, strict=True):
            name = names.get(id(term[0])) if term else None
            if name is not None:
                cut.setdefault(name, set()).update(over)
                tensors[name] = tensors.get(name, 0) + 1
    most = sorted(tensors, key=lambda name: -tensors[name])[:_MOST_DIMS]
    axes = list(dict.fromkeys(axis.name for mesh in plan.meshes for axis in mesh.timeless.axes))
    return [(dim, axis) for dim in most for axis in axes if axis not in cut[dim]]
