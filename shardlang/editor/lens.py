"""A plan -> the line above its strategy: ranks, memory, what is sent, how long a step takes."""

from __future__ import annotations

from shardlang.cost.hardware import described, missing
from shardlang.cost.predict import predict
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import device, needed
from shardlang.folds.pipeline_report import pipeline_report
from shardlang.folds.traffic import sent_bytes
from shardlang.plan.plan import Plan
from shardlang.terminal.display import duration, percent, rounded_up, size


def lens(plan: Plan) -> str:
    """The line: `8 ranks (pp 2, dp 4): 415 MB at the peak, 203 MB sent a step, 20.0% idle`."""
    mesh = plan.pipeline.mesh if plan.pipeline is not None else plan.meshes[0].timeless
    axes = ", ".join(f"{axis.name} {axis.size}" for axis in mesh.axes)
    ranks = f"{plan.ranks:,} rank{'s' * (plan.ranks != 1)}{f' ({axes})' if axes else ''}"
    parts = [_memory(plan), f"{size(sum(sent_bytes(plan)))} sent a step", *_idle(plan), *_step(plan)]
    return f"{ranks}: {', '.join(parts)}"


def _memory(plan: Plan) -> str:
    peak, has = max(needed(plan)), device(plan.program)
    if has is None:
        return f"{rounded_up(peak)} at the peak"
    fits = "" if peak <= has.memory else ", which is too much"
    return f"{rounded_up(peak)} at the peak of {has.name}'s {size(has.memory)}{fits}"


def _idle(plan: Plan) -> list[str]:
    found = pipeline_report(plan)
    return [f"{percent(found['bubble_by_cost'])} idle"] if found is not None else []


def _step(plan: Plan) -> list[str]:
    """The predicted seconds, where the file has speeds."""
    hardware = described(plan.program, Sink())
    if hardware is None or plan.graph.loss is None or missing(hardware, plan.ranks):
        return []
    return [f"{duration(predict(plan, hardware).step_s)} a step"]
