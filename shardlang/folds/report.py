"""A plan -> the plain dict that `shardc plan --json` prints (specs/plan-json.md,
specs/plan.schema.json). Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardlang.folds.block_report import blocks, told
from shardlang.folds.fits import device, needed, taken
from shardlang.folds.flops import amounts
from shardlang.folds.memory import Memory, by_coordinate, memory
from shardlang.folds.operator_report import Operators, Tensors
from shardlang.folds.overview import overview
from shardlang.folds.peak.report import peak_entry
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.pipeline_report import pipeline_report, whole_mesh
from shardlang.folds.traffic import copied_bytes, sent_bytes
from shardlang.graph.graph import Kind
from shardlang.paths.patterns import count
from shardlang.paths.runs import in_runs, unindexed
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.blocks.blocks import call_tree
from shardlang.step.gradient_sums import gradient_sums, summed_bytes
from shardlang.step.parameters import all_held
from shardlang.step.stages import stages_by_coordinate

# Of specs/plan.schema.json, and where each layer is told.
VERSION, EACH_LAYER = 3, 2
# Kinds of tensors that are told of a moment.
MOST_TENSORS = 8

Report = dict[str, Any]


def _precision(plan: Plan) -> str:
    """The precision of the run, as a program writes it."""
    training = plan.program.training
    if training is None or not training.stream:
        return training.precision if training is not None else "f32"
    return f"{training.precision}(stream = {training.precision})"


def report(plan: Plan, each: bool = False, folded: bool = True) -> Report:
    """Everything about a plan that is shown, as plain data. each: every layer is told, not equal
    ones once. folded: `blocks` are in runs; else every layer is told there too."""
    each = each or not folded
    meshes = [whole_mesh(plan, i) for i in range(len(plan.meshes))]
    by_stages = stages_by_coordinate(plan)
    needs, most = needed(plan), max(by_stages, key=lambda mine: sum(sent_bytes(plan, mine)))
    fullest = needs.index(max(needs))
    tensors, root = Tensors(plan), call_tree(plan)
    operators = Operators(plan, tensors, {} if each else told(root))
    parameters = list(_parameters(plan, tensors, each))
    return {
        "version": EACH_LAYER if each else VERSION,
        "program": plan.program.source.name,
        "strategy": plan.strategy,
        "ranks": plan.ranks,
        "microbatches": plan.microbatches,
        "precision": _precision(plan),
        "amounts": amounts(plan),
        "meshes": [{"name": m.name, "axes": [{"name": a.name, "size": a.size} for a in m.axes]} for m in meshes],
        "pipeline": _pipeline(plan, each),
        "operators": list(operators.all()),
        "blocks": blocks(plan, root, operators.lines, each, folded),
        "gradient_reductions": _reductions(plan, parameters),
        "parameters": [entry for _, entry in parameters],
        **overview(plan, most, by_stages[fullest]),
        "per_rank": {
            **_of_coordinate(plan, fullest, by_stages[fullest], most),
            "stages": [*by_stages[fullest]] if plan.pipeline is not None else None,
        },
    }


def _totals(kept: Memory, sent: tuple[int, int]) -> Report:
    return {
        "parameters_bytes": kept.parameters,
        "copies_bytes": kept.copies,
        "gradients_bytes": kept.gradients,
        "optimizer_bytes": kept.optimizer,
        "activations_bytes": kept.activations,
        "total_bytes": kept.total,
        "forward_bytes": sent[0],
        "backward_bytes": sent[1],
    }


def _of_coordinate(plan: Plan, at: int, mine: tuple[int, ...], sends: tuple[int, ...]) -> Report:
    """The memory of a rank of a coordinate, which has the stages `mine`, and what one of the stages
    `sends` sends: bytes in each memory, the device's memory by the file (null: unknown), copies in
    a step, the most at one time."""
    kept, (to_device, to_host), peak = by_coordinate(plan)[at], copied_bytes(plan, mine), step_peaks(plan)[at]
    described = device(plan.program)
    return {
        **_totals(kept, sent_bytes(plan, sends)),
        "device_bytes": kept.device,
        "host_bytes": kept.host,
        "device": described.name if described is not None else None,
        "device_memory_bytes": described.memory if described is not None else None,
        "allocator": _allocator(plan, at),
        "to_device_bytes": to_device,
        "to_host_bytes": to_host,
        "peak_bytes": peak.bytes,
        "peak": peak_entry(plan, peak),
    }


def _allocator(plan: Plan, coordinate: int) -> Report | None:
    """The memory of the device with what torch's allocator takes for it, of the fullest coordinate;
    null of others, and where the file does not say what contexts and libraries take."""
    found, described = taken(plan), device(plan.program)
    if found is None or described is None or found.coordinate != coordinate:
        return None
    return {
        "allocated_bytes": found.allocated, "reserved_bytes": found.reserved, "device_bytes": found.device,
        "groups": found.groups, "groups_bytes": found.nccl,
        "expandable_segments": described.expandable, "emptied": found.emptied,
        "largest": [{"what": w, "bytes": each, "count": count} for w, each, count in found.largest[:MOST_TENSORS]],
    }  # fmt: skip


def _pipeline(plan: Plan, each: bool) -> Report | None:
    """The pipeline's own part, with each coordinate's and stage's contents; None without one."""
    found = pipeline_report(plan)
    if found is None:
        return None
    for stage in found["stages"]:
        stage["layers"] = stage["layers"] if each else in_runs(stage["layers"])
        stage.update(_totals(memory(plan, (stage["stage"],)), sent_bytes(plan, (stage["stage"],))))
    found["coordinates"] = [
        {"stages": [*mine], **_of_coordinate(plan, at, mine, mine), **overview(plan, mine, mine)}
        for at, mine in enumerate(stages_by_coordinate(plan))
    ]
    return found


def _parameters(plan: Plan, tensors: Tensors, each: bool) -> Iterator[tuple[int, Report]]:
    """The entry of each parameter, with its value; those of layers that are told once and differ in
    nothing else together, with one of their values."""
    alike: dict[str, tuple[Report, list[int]]] = {}
    for value, param in plan.params.items():
        path, entry = plan.graph.values[value].path, _parameter(tensors, param)
        key = path if each else f"{unindexed(path)} {entry} {gradient_sums(plan)[value]}"
        alike.setdefault(key, (entry, []))[1].append(value)
    for entry, values in alike.values():
        for path in in_runs(plan.graph.values[value].path for value in values):
            yield values[0], {"path": path, **({} if each else {"times": count(path)}), **entry}


def _parameter(tensors: Tensors, param: ParamPlan) -> Report:
    plan = tensors.plan
    value = plan.graph.values[param.value]
    tensor, held = tensors.of(param.value, param.stored), all_held(plan)[param.value]
    return {
        **{k: tensor[k] for k in ("shape", "layout", "mesh", "local_shape", "cut", "sizes")},
        "local_bytes": held.itself,
        "copy_bytes": held.copy,
        "zero": param.zero,
        "zero_axes": list(param.zero_axes),
        "keep": param.keep,
        "place": plan.memory_of.get(param.value, "device"),
        "rows": param.sparse,
        "stages": list(plan.pipeline.param_stages.get(param.value, ())) if plan.pipeline else None,
        "trained": value.kind is Kind.PARAM and not plan.graph.frozen(value.id),
        "frozen": plan.graph.frozen(value.id),
    }


def _reductions(plan: Plan, parameters: Sequence[tuple[int, Report]]) -> list[Report]:
    """One entry for all parameters that are summed over the same axes by the same collective."""
    found: dict[tuple[int, tuple[str, ...], str], list[tuple[str, int]]] = {}
    for value, entry in parameters:
        for each in gradient_sums(plan)[value]:
            size = max(summed_bytes(plan, value, each).values(), default=0) * entry.get("times", 1)
            kind = entry["mesh"], each.axes, each.collective
            found.setdefault(kind, []).append((entry["path"], size))
    return [
        {"parameters": [path for path, _ in rows], "axes": list(axes), "kind": kind, "bytes": sum(n for _, n in rows)}
        for (_, axes, kind), rows in found.items()
    ]
