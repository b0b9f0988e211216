"""`shardc check --resume`: turns a plan and the index of a checkpoint into mistakes, and lines
about what the ranks would read and where in the data the run would be.

It says before a run what the run would say at its start. It compares the data's files by size and
checksum, and reads no example."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardlang.check.program import DataSource
from shardlang.checkpoints import data_files
from shardlang.checkpoints.index import OF_ANOTHER, Index
from shardlang.checkpoints.optimizers import EMA, state_names, written
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.parameters import copies, stored_type
from shardlang.step.stages import stages_by_coordinate, used
from shardlang.types.dim import BYTES

_OPTIMIZER = "give the optimizer, and `ema`, as it was, or begin its state anew by --resume-anyway"
_ANYWAY = "give it as it was, or go on with other examples by --resume-anyway"


def require_fits(plan: Plan, index: Index, base: Path, sink: Sink) -> bool:
    """Reports what keeps the run of a plan from going on from a checkpoint; whether its parameters
    and their optimizers fit. base: the folder that paths of data begin in."""
    training = plan.program.training
    there = index.tensors
    kinds, names = index.facts.get("optimizers"), state_names(index)
    averages = training is not None and training.ema is not None
    mine = {value: o.kind for o in (training.optimizers if training else ()) for value in o.params}
    for number in plan.params:
        value = plan.graph.values[number]
        if value.path not in there:
            fact, label = f"the checkpoint lacks `{value.path}`", f"not in {index.folder}"
            sink.report("SH508", fact, value.span, label, help=OF_ANOTHER)
            continue
        shape = value.type.shape
        if there[value.path].shape != shape:
            saved = list(there[value.path].shape)
            fact = f"`{value.path}` is {saved} in the checkpoint and {list(shape)} in the program"
            sink.report("SH508", fact, value.span, help=OF_ANOTHER)
            continue
        kind, slots, kept = mine.get(number), copies(plan).get(number, 0), names.get(value.path, [])
        other = isinstance(kinds, dict) and kinds.get(value.path, kind) != kind
        if kind is not None and (other or (len(kept), EMA in kept) != (slots, averages)):
            fact = f"`{value.path}` is trained by `{kind}` (which keeps {slots} tensors), and "
            fact += written(index, value.path, str(len(kept)))
            sink.report("SH508", fact, value.span, help=_OPTIMIZER)
    fits = not sink.failed
    for name, here, before in _differences(plan, index.facts, base):
        sink.report("SH508", f"`{name}` is {here}, and the checkpoint was written with {before}", None, help=_ANYWAY)
    return fits


def _differences(plan: Plan, facts: Mapping[str, Any], base: Path) -> Iterator[tuple[str, Any, Any]]:
    training, data = plan.program.training, facts.get("data")
    if training is None:
        return
    source = training.data
    here = {"batch": source.batch, "seed": training.seed}
    before = {name: facts.get(name) for name in here}
    for name, value in here.items():
        if before[name] != value:
            yield name, value, before[name]
    if isinstance(data, dict):
        for name, value, recorded in _of_source(source, data, base):
            yield name if name.startswith("data file") else f"data.{name}", value, recorded


def _of_source(source: DataSource, data: Mapping[str, Any], base: Path) -> Iterator[tuple[str, Any, Any]]:
    """Each difference between a source and the record of one: its name, here, there."""
    own = {"source": source.kind, **{name: value for name, value in source.arguments.items() if name in data}}
    if source.own is not None:
        own.update(python=source.own.source, settings=dict(source.settings))
    yield from ((name, value, data.get(name)) for name, value in own.items() if value != data.get(name))
    if isinstance(files := data.get("files"), list):
        yield from data_files.differences(data_files.as_now(source.arguments, base, files), files)


def lines(plan: Plan, index: Index, fits: bool, base: Path = Path()) -> Iterator[str]:
    """Lines about what the program does not use and, where parameters fit, about what its ranks
    would read and evaluate, and where a run that goes on would be. base: as in require_fits."""
    names = {plan.graph.values[number].path for number in plan.params}
    further = sorted({name.rpartition(":")[0] or name for name in index.tensors} - names)
    if further:
        more = f" and {len(further) - 1} more" if len(further) > 1 else ""
        yield f"{index.folder}: the program does not use `{further[0]}`{more}"
    if not fits:
        return
    training, evaluated = plan.program.training, index.facts.get("eval")
    if training is not None and training.eval is not None and isinstance(evaluated, dict):
        for name, here, before in _of_source(training.eval, evaluated, base):
            yield f"{index.folder}: evaluates other data than before: `{name}` of `eval` is {here}, and was {before}"
    whole = sum(layout.type.nbytes for layout in index.tensors.values())
    for coordinate, stages in enumerate(stages_by_coordinate(plan)):
        where = f" at {plan.pipeline.axis} = {coordinate}" if plan.pipeline is not None else ""
        yield f"{index.folder}: a rank{where} reads at most {_read(plan, stages):,} bytes of {whole:,}"
    yield from _places(plan, index)


def _places(plan: Plan, index: Index) -> Iterator[str]:
    """Lines about where in the data a run that goes on would be."""
    data, before = index.facts.get("data"), index.facts.get("batch")
    length = data.get("length") if isinstance(data, dict) else None
    training = plan.program.training
    if training is None or type(length) is not int or type(before) is not int or not 0 < before <= length:
        return
    total = training.steps if training.steps is not None else (training.epochs or 0) * (length // before)
    if index.step >= total:
        yield f"{index.folder}: the run is finished: {index.step} of its {total} steps are done"
        return
    yield f"{index.folder}: the run goes on {_place(index.step, length, before)}"
    batch = training.data.batch
    if batch != before and batch <= length:
        yield f"{index.folder}: with --resume-anyway it goes on {_place(index.step, length, batch)}"


def _place(step: int, length: int, batch: int) -> str:
    epoch, number = divmod(step, length // batch)
    done = f"{number * batch:,} of its {length:,} examples are done"
    return f"after step {step}, at batch {number + 1} of {length // batch} of epoch {epoch + 1} ({batch} each): {done}"


def _read(plan: Plan, stages: Collection[int]) -> int:
    """Bytes that a rank reads at most, one of those that run `stages`."""
    return sum(_rows(plan, p) * (1 + copies(plan).get(v, 0)) for v, p in plan.params.items() if used(plan, v, stages))


def _rows(plan: Plan, param: ParamPlan) -> int:
    """Bytes of what a rank trains of a parameter: under ZeRO the rows of the first, who has
    most."""
    shape = plan.local_shape(param.value, param.stored)
    if param.zero and shape:
        shape = (-(-shape[0] // plan.meshes[param.stored.mesh].degree(param.zero_axes)), *shape[1:])
    return math.prod(shape) * BYTES[stored_type(plan, param)]
