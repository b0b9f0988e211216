"""The `train` block: values, loss and metrics as operators of the graph, and the settings of the
run.

Sources are data_sources.py's, optimizers optimizers.py's; finished.py makes the graph of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.model.forward import bind_each, named, spread
from shardlang.check.model.instantiate import declare_model, model_call
from shardlang.check.program import DataSource, Training
from shardlang.check.train.data_sources import read_source, require_same_words, silence
from shardlang.check.train.finished import finish, misspelt, report_unused
from shardlang.check.train.frozen import frozen
from shardlang.check.train.graph_checks import check_indices, check_loss, detached
from shardlang.check.train.late import apart, offer_figures, require_known
from shardlang.check.train.losses import joined, trained_by
from shardlang.check.train.optimizers import Optimizer, assign, read_optimizers
from shardlang.check.train.overrides import Overrides, member_dims, with_overrides
from shardlang.check.train.settings import RESERVED, check_evaluation, read_settings
from shardlang.check.train.weight_names import fitted, require_filled
from shardlang.check.values import UNKNOWN, Instance, Tensor, describe
from shardlang.facts.figures import BESIDE, is_told
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Kind
from shardlang.hints.nearest import nearest
from shardlang.syntax import ast
from shardlang.types.dim import Dim

# What each line of the metrics holds besides the loss.
_LOGGED = ("step", "epoch", "step_ms", "host_ms", *BESIDE)
# A key of every file of weights that is none of a tensor: https://huggingface.co/docs/safetensors
_NO_TENSOR = "__metadata__"
_EVERY = re.compile(r"[\w.]+\[\*\][\w.\[\]*]*")

Found = tuple[Graph | None, Training | None]


@dataclass
class _Reading:
    """The values that the statements of one `train` block have so far."""

    frame: Frame
    given: dict[str, ast.Setting] = field(default_factory=dict)
    optimizers: list[ast.Setting] = field(default_factory=list)
    freezes: list[ast.Setting] = field(default_factory=list)
    metrics: dict[str, int] = field(default_factory=dict)
    late: Graph | None = None
    values: dict[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    source: DataSource | None = None
    batch: Dim | None = None
    eval: DataSource | None = None
    loss: int | None = None
    several: bool = False  # whether some loss is `loss at ..`
    losses: list[tuple[ast.Setting, int]] = field(default_factory=list)  # where there are several
    root: Instance | None = None
    again: set[int] = field(default_factory=set)  # settings that are wrong by their names, which say nothing


def check_train(node: ast.Train, frame: Frame, overrides: Overrides) -> Found:
    """The graph, None after errors in a value, and the training settings, None after any."""
    reading, node = _Reading(frame), with_overrides(node, overrides.get("train", {}))
    reading.several = any(s.name.text == "loss" and s.at for s in node.settings)
    for setting in node.settings:
        _note(setting, reading)
    if not reading.given.keys() & {"epochs", "steps"}:
        _ = _misspelt("epochs", node, reading) or _misspelt("steps", node, reading)
    sink = frame.context.sink
    before = len(sink.found)
    settings = read_settings(reading.given, node.span, frame)
    _require(node, reading)
    of_settings = len(sink.found) - before
    for setting in node.settings:
        _statement(setting, reading, overrides)
        if setting.name.text == "data":  # its fields are names of the program
            offer_figures(node, frame)
    sound = reading.loss is not None and reading.source is not None and len(sink.found) == of_settings
    lost = any(misspelt(s.name.text, s.name.span, RESERVED) == "optimizer" for s in node.settings)
    optimizers = read_optimizers(reading.optimizers, frame) if not lost else []
    # Reserved settings are used by being there.
    frame.context.used.update(id(s) for s in node.settings if s.name.text in RESERVED and s.keyword != "metric")
    report_unused(frame.context, reading.values)
    return _whole(node, reading, settings, optimizers) if sound else (None, None)


def _whole(node: ast.Train, reading: _Reading, settings: dict[str, Any], optimizers: Sequence[Optimizer]) -> Found:
    """The graph of values without a mistake, and the training settings."""
    frame, sink, given = reading.frame, reading.frame.context.sink, reading.given
    before = len(sink.found)
    graph, trained = _graph(reading)
    if len(sink.found) > before:
        return None, None
    used = all(mistake.code != "SH223" for mistake in sink.found)  # what nothing uses has no gradient either
    if used:
        loss = next((s for s in node.settings if s.name.text == "loss"), None)
        check_loss(graph, trained, loss.value.span if loss else None, sink)
    _check_names(graph, frame)
    check_indices(graph, sink)
    if settings.get("evaluate") is not None:
        at, figures = given["evaluate"].value, ("loss", *reading.metrics)
        check_evaluation(at, settings["evaluate"], reading.eval is not None, figures, given, frame)
    if settings.get("init") is not None or "init" not in given:
        require_filled(settings.get("init"), graph, node.span, sink)
    if settings.get("init") is not None:
        settings["init"] = fitted(settings["init"], graph, given["init"].span, frame)
    if not used or len(optimizers) < len(reading.optimizers):
        return graph, None
    assigned = assign(optimizers, graph, frame)
    if sink.failed or reading.source is None:
        return graph, None
    return graph, Training(reading.source, reading.eval, assigned, late=reading.late, **settings)


def _graph(reading: _Reading) -> tuple[Graph, set[int]]:
    """The graph of what the losses and metrics need, and the parameters that a loss is to train:
    those that neither `freeze` nor a `detach` keeps as they are."""
    assert reading.loss is not None
    frame, build = reading.frame, reading.frame.context.build
    wanted = [value for _, value in reading.losses] or [reading.loss]
    shown, reading.late = apart(reading.metrics, frame)
    found = build.keep([*wanted, *shown.values()])
    losses, metrics = found[: len(wanted)], dict(zip(shown, found[len(wanted) :], strict=True))
    reading.metrics = {name: value for name, value in metrics.items() if is_told(name)}
    graph = finish(frame.context, losses[0], metrics, reading.batch)
    kept = frozen(reading.freezes, reading.optimizers, graph, frame)
    declared = {at for at, v in enumerate(build.values) if v.kind is Kind.PARAM} - kept
    if not reading.losses:
        graph = finish(frame.context, losses[0], metrics, reading.batch, kept) if kept else graph
        return graph, declared - detached(graph)
    settings = [setting for setting, _ in reading.losses]
    trains = trained_by(settings, graph, kept, frame)
    if frame.context.sink.failed:
        return graph, declared
    for value, params in zip(losses, trains, strict=True):
        declared -= params & detached(finish(frame.context, value, metrics, reading.batch))
    loss, ids = joined(list(zip(settings, losses, strict=True)), trains, frame)
    if frame.context.sink.failed:
        return graph, declared
    metrics = {name: ids[v] for name, v in metrics.items()}
    return finish(frame.context, loss, metrics, reading.batch, {ids[v] for v in kept}), {ids[v] for v in declared}


def _check_names(graph: Graph, frame: Frame) -> None:
    """Parameters and states are saved under their paths."""
    for value in graph.values:
        if value.path == _NO_TENSOR and value.id in (*graph.params, *graph.states):
            frame.context.sink.report(
                "SH201", f"`{_NO_TENSOR}` is no tensor's name in a file of weights, but a key that each has already",
                value.span, "a tensor of this name", help="give it another name, such as `metadata`",
            )  # fmt: skip


def _note(setting: ast.Setting, reading: _Reading) -> None:
    """Sort a setting; a second of the same name is an error."""
    name = setting.name.text
    reserved = next((n for n in setting.names if n.text in RESERVED), None) if setting.others else None
    if reserved is not None:
        help = f"give it another name, and write `{reserved.text} = ` that name in a line of its own"
        fact = f"`{reserved.text}` is a setting, and stands alone"
        reading.frame.wrong("SH225", fact, reserved.span, "here", help=help)
        reading.again.add(id(setting))
    elif setting.keyword == "metric":
        return
    elif setting.keyword == "freeze":
        reading.freezes.append(setting)
    elif name == "optimizer":
        first = next((s for s in reading.optimizers if not s.at), None)
        if not setting.at and first is not None:
            _twice(setting, first, reading)
        reading.optimizers.append(setting)
    elif name in RESERVED and not (name == "loss" and setting.at):
        if name in reading.given:
            _twice(setting, reading.given[name], reading)
        reading.given.setdefault(name, setting)


def _twice(setting: ast.Setting, first: ast.Setting, reading: _Reading) -> None:
    reading.again.add(id(setting))
    fact = f"`{setting.name.text}` is set twice"
    reading.frame.context.sink.again("SH201", fact, setting.span, first.span, "keep one of them")


def _require(node: ast.Train, reading: _Reading) -> None:
    helps = {
        "model": "add `model = Net()`",
        "data": 'add `data = digits(split = "train", batch = batch)`, say',
        "loss": "add `loss = mse_loss(model(x), label)`, say",
        "optimizer": "add `optimizer = adamw(lr = 3e-4)`, say",
    }
    names = {s.name.text for s in node.settings}
    for name, help in helps.items():
        if name in names:
            continue
        # What uses it is no further mistake: the model by its name, the fields of the data by any.
        if name == "model":
            reading.frame.names["model"] = UNKNOWN
        if not _misspelt(name, node, reading):
            reading.frame.wrong("SH231", f"`train` needs `{name}`", node.span, f"no `{name}`", help=help)
            reading.frame.sightless = reading.frame.sightless or name == "data"


def _misspelt(wanted: str, node: ast.Train, reading: _Reading) -> bool:
    """Reports a value of `train` that was meant as the setting `wanted`."""
    for setting in node.settings:
        name = setting.name.text
        if name not in RESERVED and setting.keyword != "metric" and nearest(name, (wanted,)):
            help = f"did you mean `{wanted}`?"
            reading.frame.wrong("SH231", f"there is no setting `{name}`", setting.name.span, help=help)
            reading.again.add(id(setting))
            if wanted == "data":
                silence(setting.value, reading.frame)
            if wanted in ("epochs", "steps"):
                reading.given[wanted] = setting
            return True
    return False


def _statement(setting: ast.Setting, reading: _Reading, overrides: Overrides) -> None:
    frame, name = reading.frame, setting.name.text
    if id(setting) in reading.again:
        return
    if setting.keyword == "metric":
        _metric(setting, reading)
    elif setting.keyword == "freeze":
        frame.context.used.add(id(setting))
    elif name == "data":
        reading.source, reading.batch = read_source(setting.value, frame)
    elif name == "eval":
        _eval(setting, reading)
    elif name == "model":
        _model(setting, reading, overrides)
    elif name == "loss":
        reading.loss = _loss(setting, reading)
    elif name not in RESERVED:
        _value(setting, reading)


def _model(setting: ast.Setting, reading: _Reading, overrides: Overrides) -> None:
    frame = reading.frame
    decl, arguments = model_call(setting.value, frame)
    value: Any = UNKNOWN
    if decl is not None:
        _override(decl.node, arguments, overrides, frame)
        value = declare_model(decl, arguments, "", setting.value.span, frame) or UNKNOWN
    reading.root = value if isinstance(value, Instance) else None
    frame.bind("model", value, setting.name.span)


def _override(model: ast.Model, arguments: dict[str, Any], overrides: Overrides, frame: Frame) -> None:
    """Formals and dims of the root model that are set from outside."""
    formals, dims = [f.name.text for f in model.formals], member_dims(model.members)
    for name, node in overrides.get("model", {}).items():
        if name in formals:
            arguments[name] = (frame.evaluate(node), node.span)
        elif name in dims:
            frame.context.overrides[name] = node
        else:
            help = f"it has {', '.join(f'`{n}`' for n in (*formals, *dims)) or 'nothing to set'}"
            frame.context.sink.report("SH224", f"model `{model.name.text}` has no `{name}` to set", None, help=help)


def _eval(setting: ast.Setting, reading: _Reading) -> None:
    """The source of `eval`: the fields of `data`, in values of its own that nothing else reads."""
    frame, build = reading.frame, reading.frame.context.build
    candidates = dict(frame.context.candidates)
    before = (len(build.values), dict(build.addresses), dict(build.declared))
    inner = Frame(frame.context, frame.file, "train")
    source, _ = read_source(setting.value, inner)
    del build.values[before[0] :]
    build.addresses, build.declared = before[1], before[2]
    frame.context.candidates = candidates
    if source is None or reading.source is None:
        return
    if source.fields != reading.source.fields:
        fact = f"`eval` has the fields {', '.join(source.fields)}, and `data` has {', '.join(reading.source.fields)}"
        frame.wrong("SH235", fact, setting.value.span, "other fields", help="both need the same fields")
    elif source.batch != reading.source.batch:
        fact = f"`eval` has batches of {source.batch}, and `data` of {reading.source.batch}"
        frame.wrong("SH235", fact, setting.value.span, "another batch", help="give both the same `batch`")
    elif require_same_words(reading.source, source, setting.value.span, frame):
        reading.eval = source


def _evaluate(setting: ast.Setting, reading: _Reading, address: str = "") -> tuple[Any, ...]:
    """The values of a statement, one a name, its operators named after it, or after `address`."""
    frame = reading.frame
    frame.ops, frame.context.build.statement = [], setting.span
    values = spread(frame.evaluate(setting.value), setting, frame)
    (first, made), *others = named(setting, values)
    frame.context.build.close(frame.ops, made, "train", address or first, first, 0, others)
    return values


def _value(setting: ast.Setting, reading: _Reading) -> None:
    frame = reading.frame
    for name in setting.names:
        if name.text in frame.spans:
            frame.bind(name.text, UNKNOWN, name.span)  # reports it; what it says may be large, and is said already
            return
    reading.values.update({id(name): (name.text, tuple(RESERVED)) for name in setting.names})
    if not setting.others and misspelt(setting.name.text, setting.name.span, RESERVED):  # what is no value
        frame.context.candidates[id(setting.name)] = ("value", setting.name.text, setting.name.span)
        return
    bind_each(setting, _evaluate(setting, reading), frame)


def _loss(setting: ast.Setting, reading: _Reading) -> int | None:
    """The value of the loss, or of one among several."""
    value = _scalar(setting, reading, f"loss[{len(reading.losses)}]" if reading.several else "loss")
    if value is not None:
        require_known(value.id, setting.value.span, reading.frame)
    if value is not None and reading.several:
        reading.losses.append((setting, value.id))
    if setting.at:
        return value.id if value is not None else None
    reading.frame.bind("loss", value or UNKNOWN, setting.name.span)
    return value.id if value is not None else None


def _metric(setting: ast.Setting, reading: _Reading) -> None:
    name, span = setting.name.text, setting.name.span
    if name in _LOGGED:
        fact, help = f"`{name}` is a column of the log already", f"give the metric another name, such as `{name}_`"
        reading.frame.wrong("SH201", fact, span, "a metric of this name", help=help)
    elif name in reading.metrics or name == "loss":
        help = "a metric is named once, and `loss` is always reported"
        reading.frame.wrong("SH201", f"metric `{name}` is there already", span, "again here", help=help)
    elif (value := _scalar(setting, reading, f"metric:{name}")) is not None:
        reading.metrics[name] = value.id


def _scalar(setting: ast.Setting, reading: _Reading, address: str) -> Tensor | None:
    """One floating or whole number that is computed; None after a report."""
    (value,), span = _evaluate(setting, reading, address), setting.value.span
    what = "the loss" if setting.name.text == "loss" else f"metric `{setting.name.text}`"
    if isinstance(value, Tensor) and not value.type.dims:
        return value
    if isinstance(value, Tensor):
        every = _EVERY.search(span.text) if len(value.type.dims) == 1 else None
        help = f"take the mean: `mean({span.text})`" if len(span.text) < 60 else "take the `mean`"
        help = f"add up what the layers have: `sum({every[0]})`" if every is not None else help
        fact = f"{what} must be one number, and this is {value.type}"
        reading.frame.wrong("SH232", fact, span, "has dims", help=help)
    elif value is not UNKNOWN:
        fact = f"{what} must be computed from the data, and this is {describe(value)}"
        reading.frame.wrong("SH232", fact, span, describe(value))
    return None
