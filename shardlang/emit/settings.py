"""The settings of `train` and the plan's -> the `rt.Program` at the end of an emitted file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlang.check.program import DataSource, OptimizerSetting, Training
from shardlang.check.values import CsvText, Numbering
from shardlang.emit.accumulators import Accumulator, EvalPass
from shardlang.emit.gathers import order_arguments
from shardlang.emit.header import cut_arguments, own_files, own_text
from shardlang.emit.text.citations import file_text
from shardlang.emit.text.fold import patterns
from shardlang.emit.text.lines import WIDTH, call_text, indented, lines_text, list_text
from shardlang.emit.text.sizes import Groups
from shardlang.folds.fits import device
from shardlang.folds.flops import peak_flops, step_flops, step_tokens
from shardlang.folds.peak.step import step_peaks
from shardlang.ops.python_text import literal
from shardlang.paths.patterns import covered
from shardlang.plan.plan import Plan
from shardlang.plan.reads import Form, layout_of, left_pending
from shardlang.step.saved_activations import owners

# Schedule of learning rates -> its class in the runtime; without one the rate stays.
SCHEDULES = {"linear": "Linear", "warmup_cosine": "WarmupCosine"}


def program_text(
    plan: Plan, training: Training, groups: Groups, evaluation: EvalPass | None, loss: int, once: tuple[str, ...] = ()
) -> str:
    """`program = rt.Program(...)`, an argument or two a line. `once`: functions run once a step."""
    loss_pending = left_pending(plan, loss)
    metrics = {name: left_pending(plan, value) for name, value in plan.graph.metrics.items()}
    totals = {a.name: a.left_pending for a in _kept(evaluation) if not a.joined}
    for pending in ([loss_pending, *metrics.values()], totals.values()):
        groups.note_all(pending)
    data = _source_text(plan, training.data)
    evaluated = _source_text(plan, training.eval) if training.eval is not None and evaluation is not None else ""
    name = literal(file_text(plan.program.source, plan.program.source))
    forward, evaluate = ("forward=forward", "evaluate=evaluate, finish=finish")
    if plan.pipeline is not None:
        forward, evaluate = ("stages=stages, pipeline=schedule", "finish=finish")
    functions = _fitted([f"{forward}, loss_pending={literal(loss_pending)}", _mapping("metrics_pending", metrics)])
    tests = [*_fitted([evaluate, _mapping("eval_pending", totals)]), *_joined(plan, evaluation)] if evaluated else []
    lines = [
        f"name={name}, strategy={literal(plan.strategy)}, ranks={plan.ranks}",
        f"mesh=mesh, groups={literal(groups.listed(0))}, seed={training.seed}",
        *_further_meshes(plan, groups),
        "parameters=parameters, states=states" if plan.graph.states else "parameters=parameters",
        f"data={data}",
        *([f"eval={evaluated}"] if evaluated else []),
        f"optimizers={list_text([_optimizer_text(plan, o) for o in training.optimizers])}",
        *([", ".join(f"{name}={name}" for name in once)] if once else []),
        *functions,
        *(order_arguments(plan, 0, 1) if plan.pipeline is None else []),
        *tests,
        *([f"late=late, late_from={literal(training.late_from)}"] if training.late is not None else []),
        f"{_length(training)}, bucket_bytes={plan.bucket_bytes:_}",
        *_optional(training),
        *(["own=own"] if own_files(plan) else []),
        *(["drops=True"] if any(group.drops for group in owners(plan).groups) else []),
        *(["to_host=True"] if any(group.to_host for group in owners(plan).groups) else []),
        *_work(plan),
    ]
    return f"program = {lines_text('rt.Program', lines)}"


def _kept(evaluation: EvalPass | None) -> list[Accumulator]:
    return list(evaluation.accumulators.values()) if evaluation is not None else []


def _joined(plan: Plan, evaluation: EvalPass | None) -> list[str]:
    """The numbers of each example that an evaluation has, beside its sums."""
    joined = tuple(a.name for a in _kept(evaluation) if a.joined)
    predicted = evaluation.predicted if evaluation is not None else ()
    found = [f"eval_joined={literal(joined)}"] if joined else []
    return [*found, *([f"predicted={list_text([_cut_text(plan, at) for at in predicted])}"] if predicted else [])]


def _fitted(parts: list[str]) -> list[str]:
    """Arguments on one line where they fit, else one a line."""
    line = ", ".join(parts)
    return [line] if len(line) + 5 <= WIDTH else parts


def _mapping(name: str, items: Mapping[str, Any]) -> str:
    """`name={...}`, an item a line where it does not fit on one."""
    flat = f"{name}={literal(items)}"
    if len(flat) + 5 <= WIDTH:
        return flat
    return f"{name}={{\n" + "".join(f"    {literal(key)}: {literal(value)},\n" for key, value in items.items()) + "}"


def _further_meshes(plan: Plan, groups: Groups) -> list[str]:
    if len(plan.meshes) == 1:
        return []
    pairs = [f"({mesh.name}, {literal(groups.listed(at))})" for at, mesh in enumerate(plan.meshes) if at]
    return [f"further_meshes=[{', '.join(pairs)}]"]


def _length(training: Training) -> str:
    return f"epochs={training.epochs}" if training.epochs is not None else f"steps={training.steps}"


def _optional(training: Training) -> list[str]:
    """The settings that most programs leave at their defaults."""
    given = {
        "clip": literal(training.clip) if training.clip is not None else "",
        "not_finite": literal(training.not_finite) if training.not_finite != "stop" else "",
        "ema": literal(training.ema) if training.ema is not None else "",
        "lr_schedule": _schedule_text(training) if training.lr_schedule else "",
        "checkpoint": _checkpoint_text(training.checkpoint[1]) if training.checkpoint else "",
        "evaluation": _evaluation_text(training.evaluate) if training.evaluate else "",
        "log": literal(dict(training.log)) if training.log else "",
        "init": _init_text(training.init[1]) if training.init else "",
        "precision": literal(training.precision),
        "compile": literal(training.compile) if training.compile != "none" else "",
    }
    return [f"{name}={text}" for name, text in given.items() if text]


def _work(plan: Plan) -> list[str]:
    """The work of a step, and the device's peak and memory, where these are known."""
    peak, tokens = peak_flops(plan), step_tokens(plan)
    known = [f"tokens={tokens:_}"] if tokens else []
    known += [f"flops={step_flops(plan.graph):_}", f"peak={peak:_}"] if peak else []
    if device(plan.program) is not None:
        known.append(f"memory={literal([peak.bytes for peak in step_peaks(plan)])}")
    return [f"work={call_text('rt.Work', known, 1)}"] if known else []


def _schedule_text(training: Training) -> str:
    """`rt.WarmupCosine(warmup=2000, min=3e-05)`; nothing for a rate that stays."""
    assert training.lr_schedule is not None
    kind, arguments = training.lr_schedule
    if training.own_schedule is not None:
        return f"rt.OwnSchedule({own_text(training.own_schedule)}, {literal(dict(arguments))})"
    given = ", ".join(f"{name}={literal(value)}" for name, value in arguments.items())
    return f"rt.{SCHEDULES[kind]}({given})" if kind in SCHEDULES else ""


def _checkpoint_text(given: Mapping[str, Any]) -> str:
    return f"rt.Checkpoint(every={given['steps']}, keep={given['keep']}, to={literal(given['to'])})"


def _evaluation_text(given: Mapping[str, Any]) -> str:
    """`rt.Evaluation(every=200, best="loss", lowest=True, patience=5)`, of these what is given."""
    word, figure = given.get("best", ("", ""))
    parts = {
        "every": given.get("steps"), "best": figure or None, "lowest": word == "lowest" if figure else None,
        "patience": given.get("patience"), "ema": True if "weights" in given else None,
    }  # fmt: skip
    return f"rt.Evaluation({', '.join(f'{k}={literal(v)}' for k, v in parts.items() if v is not None)})"


def _init_text(arguments: Mapping[str, Any]) -> str:
    """`rt.Safetensors("w.safetensors")`, with the rules of a name map below each other."""
    names, path = arguments.get("names"), literal(arguments["path"])
    if names is None:
        return f"rt.Safetensors({path})"
    rules = [
        ", ".join([
            f"rt.Named({literal(rule.ours)}", literal(rule.theirs), *["transposed=True"] * rule.transposed,
            *([f"part={rule.part}"] if rule.part else []),
        ]) + ")"
        for rule in names.rules
    ]  # fmt: skip
    further = [f"prefix={literal(names.prefix)}"] if names.prefix else []
    further += [f"ignored={list_text([literal(n) for n in names.ignored])}"] if names.ignored else []
    body = indented(",\n".join([list_text(rules), *further]) + ",")
    return f"rt.Safetensors({path}, names=rt.Names(\n{body}\n))"


def _source_text(plan: Plan, source: DataSource) -> str:
    """`rt.Source("random", batch=16, batches=4, seed=1, fields=[...])`, a field a line.

    They are in the order of `forward`'s arguments; `eval`'s have the layouts of `data`'s."""
    further = [f"{key}={literal(value)}" for key, value in source.arguments.items()]
    if source.own is not None:
        further += [f"call={own_text(source.own)}", f"settings={literal(dict(source.settings))}"]
    head = ", ".join([literal(source.kind), f"batch={source.batch}", *further])
    fields = list_text([_field_text(plan, value, source) for value in plan.graph.data])
    body = indented(f"{head},\nfields={fields},")
    return f"rt.Source(\n{body}\n)"


def _field_text(plan: Plan, value: int, source: DataSource) -> str:
    type, layout = plan.graph.values[value].type, plan.produced[value]
    arguments = [literal(plan.graph.values[value].name), literal(type.dtype), literal(type.shape)]
    arguments.extend(cut_arguments(type, layout, plan))
    bound, ignored = plan.graph.values[value].bound, plan.graph.values[value].ignored
    if bound is not None:
        arguments.append(f"bound={bound}")
    if ignored:
        arguments.append(f"ignored={literal(ignored)}")
    if plan.graph.values[value].name in source.words:
        arguments.append(f"words={_words_text(*source.words[plan.graph.values[value].name])}")
    if value in plan.memory_of:
        arguments.append(f"place={literal(plan.memory_of[value])}")
    return call_text("rt.Field", arguments, 3)


def _words_text(name: str, words: Numbering) -> str:
    """`rt.Words("colors", ("red", "green"), unknown=True)`, `rt.Text("vocab", "words", 1004)`"""
    if isinstance(words, CsvText):
        more = [f"path={literal(words.path)}"] * bool(words.path) + [f"pad={words.pad}"] * (words.pad is not None)
        return f"rt.Text({', '.join([literal(name), literal(words.form), str(words.count), *more])})"
    given: dict[str, Any] = {"most": words.most, "unknown": words.unknown, "hashed": words.hashed}
    listed = [literal(words.listed)] * bool(words.listed)
    further = [f"{key}={literal(value)}" for key, value in given.items() if value]
    return f"rt.Words({', '.join([literal(name), *listed, *further])})"


def _cut_text(plan: Plan, at: Form) -> str:
    """A value that an evaluation keeps, and how it is cut."""
    value = plan.graph.values[at[0]]
    arguments = [literal(value.path), literal(value.type.dtype), literal(value.type.shape)]
    return call_text("rt.Field", [*arguments, *cut_arguments(value.type, layout_of(plan, at), plan)], 3)


def _optimizer_text(plan: Plan, optimizer: OptimizerSetting) -> str:
    """An optimizer; by the selectors as written, if these cover its parameters and no more."""
    at: tuple[str, ...] = ()
    if optimizer.at:
        paths = [plan.graph.values[value].path for value in plan.graph.params if not plan.graph.frozen(value)]
        mine = [plan.graph.values[value].path for value in optimizer.params]
        at = optimizer.at if covered(optimizer.at, paths) == set(mine) else patterns(mine, paths)
    arguments = [f"{key}={literal(value)}" for key, value in optimizer.arguments.items()]
    if (own := optimizer.own) is not None:
        declared = [f"needs={literal(own.needs)}", f"state={literal(own.state)}"]
        arguments = [f"call={own_text(own)}", *declared, f"settings={literal(dict(optimizer.arguments))}"]
    arguments += [f"at={literal(at)}"] if at else []
    return call_text("rt.Optimizer", [literal(optimizer.kind), *arguments], 2)
