"""The settings of `train` that are plain values: how long, seed, precision, clipping, schedule,
initial weights.

Values, data and optimizers are read elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlang.check.constants import whole
from shardlang.check.context import Frame
from shardlang.check.declared import Declared, called
from shardlang.check.model.arguments import Argument, by_name, number
from shardlang.check.program import NameMap
from shardlang.check.train.checkpoints import read_checkpoint, read_log
from shardlang.check.train.weight_names import read_names
from shardlang.check.values import UNKNOWN, unfit
from shardlang.diagnostics.nearest import nearest, offer
from shardlang.ops.declaration import Param
from shardlang.source import Span
from shardlang.syntax import ast

RESERVED = (
    "model", "data", "eval", "loss", "metric", "optimizer", "lr_schedule", "precision", "clip", "epochs", "steps",
    "seed", "init", "checkpoint", "log",
)  # fmt: skip
_RISE = (
    "With n steps in all and k = max(1, warmup), the rate of step s, from 1, is\n\n"
    "    lr s / k     up to step k, then\n    min + (lr - min) {}\n\nSo step k alone has lr, and the last step has min."
)
_SLOPE = (Param("warmup", "int", 0), Param("min", "number", 0.0))
SCHEDULES: Mapping[str, Declared] = {
    "constant": Declared("Every step has lr, as without `lr_schedule`."),
    "linear": Declared(_RISE.format("(n - s) / (n - k)"), _SLOPE),
    "warmup_cosine": Declared(_RISE.format("(1 + cos(pi (s - k) / (n - k))) / 2"), _SLOPE),
}
_PRECISIONS = ("f32", "f64", "bf16")
_ABSENT_PRECISIONS = ("f16",)


def read_settings(given: Mapping[str, ast.Setting], span: Span, frame: Frame) -> dict[str, Any]:
    """The plain settings, by name; sets the run's floating type and reports mistakes."""
    found = _length(given, span, frame)
    if "seed" in given:
        found["seed"] = _seed(given["seed"].value, frame)
    if "precision" in given:
        found["precision"] = _precision(given["precision"].value, frame)
        low = found["precision"] == "bf16"
        frame.context.dtype, frame.context.low = ("f32", found["precision"]) if low else (found["precision"], "")
    if "clip" in given:
        found["clip"] = _positive(given["clip"], frame)
    if "lr_schedule" in given:
        found["lr_schedule"] = _schedule(given["lr_schedule"].value, frame)
    if "init" in given:
        found["init"] = _init(given["init"].value, frame)
    if "checkpoint" in given:
        found["checkpoint"] = read_checkpoint(given["checkpoint"].value, frame)
    if "log" in given:
        found["log"] = read_log(given["log"].value, frame)
    return found


def _seed(node: ast.Expr, frame: Frame) -> int:
    value = whole(frame.evaluate(node), node.span, frame.context.sink, "`seed`")
    if value is UNKNOWN:
        return 0
    if value < 0:
        help = "a seed is a whole number from 0"
        frame.wrong("SH237", f"`seed` must be at least 0, and this is {value}", node.span, help=help)
    return int(value)


def _length(given: Mapping[str, ast.Setting], span: Span, frame: Frame) -> dict[str, Any]:
    """Exactly one of epochs and steps."""
    sink, found = frame.context.sink, {}
    both = [given[n] for n in ("epochs", "steps") if n in given]
    if len(both) == 2:
        labels, fact = [(both[0].span, "and this")], "`train` has both `epochs` and `steps`"
        sink.report("SH231", fact, both[1].span, "one too many", labels=labels, help="keep one of them")
    if not both:
        sink.report("SH231", "`train` needs `epochs` or `steps`", span, "how long?", help="add `epochs = 10`, say")
    for setting in both:
        name, span = setting.name.text, setting.value.span
        value = whole(frame.evaluate(setting.value), span, sink, f"`{name}`")
        if value is not UNKNOWN and value < 1:
            sink.report("SH213", f"`{name}` must be at least 1, and this is {value}", span, str(value))
        elif value is not UNKNOWN:
            found[name] = value
    return found


def _precision(node: ast.Expr, frame: Frame) -> str:
    text = node.text if isinstance(node, ast.Name) else node.span.text
    if text in _PRECISIONS:
        return text
    if text in _ABSENT_PRECISIONS:
        frame.wrong("SH400", f"the precision `{text}` is not there yet", node.span, "in no version so far")
        return "f32"
    help = offer(text, (*_PRECISIONS, *_ABSENT_PRECISIONS), f"it is one of {', '.join(_PRECISIONS)}")
    frame.wrong("SH237", f"there is no precision `{text}`", node.span, "unknown", help=help)
    return "f32"


def _positive(setting: ast.Setting, frame: Frame) -> float | None:
    name, span = f"`{setting.name.text}`", setting.value.span
    value = number(frame.evaluate(setting.value), span, frame, name, True)
    if value is not UNKNOWN and value <= 0:
        frame.wrong("SH237", f"{name} must be above 0, and this is {value:g}", span, f"{value:g}")
    return None if value is UNKNOWN or value <= 0 else float(value)


def _schedule(node: ast.Expr, frame: Frame) -> tuple[str, Mapping[str, Any]] | None:
    kind = called(node) or node.span.text
    if kind not in SCHEDULES or not isinstance(node, ast.Call) or node.args:
        close = nearest(kind, SCHEDULES)
        help = "write `warmup_cosine(warmup = 2000, min = 3e-5)`, `linear(...)` or `constant()`"
        help = f"did you mean `{close}(...)`?" if close and close != kind else help
        frame.wrong("SH237", f"`{node.span.text}` is no schedule of the learning rate", node.span, "here", help=help)
        return None
    kinds = {param.name: param.kind for param in SCHEDULES[kind].params}
    given: dict[str, Argument] = {}
    if not by_name(kind, node.keywords, kinds, given, frame):
        return None
    found: dict[str, Any] = {}
    for name, argument in given.items():
        value, span, what = argument.evaluate(frame), argument.span, f"`{name}`"
        integer = kinds[name] == "int"
        value = whole(value, span, frame.context.sink, what) if integer else number(value, span, frame, what, True)
        if value is not UNKNOWN and value < 0:
            value = frame.wrong("SH237", f"{what} must be at least 0, and this is {value:g}", span, f"{value:g}")
        if value is UNKNOWN:
            return None
        found[name] = value
    return kind, {**SCHEDULES[kind].defaults, **found}


def _init(node: ast.Expr, frame: Frame) -> tuple[str, Mapping[str, Any]] | None:
    call = node if isinstance(node, ast.Call) and called(node) == "safetensors" else None
    named = {k.name.text: k.value for k in call.keywords} if call is not None else {}
    if call is None or len(call.args) != 1 or named.keys() - {"names"} or len(named) < len(call.keywords):
        help = 'write `init = safetensors("weights.safetensors")`, with `names = "file.map"` where its names differ'
        frame.wrong("SH237", "`init` is a file of weights", node.span, "here", help=help)
        return None
    path = _path(call.args[0], frame)
    if path is None or "names" not in named:
        return None if path is None else ("safetensors", {"path": path})
    names = _names(named["names"], frame)
    return None if names is None else ("safetensors", {"path": path, "names": names})


def _path(node: ast.Expr, frame: Frame) -> str | None:
    value = frame.evaluate(node)
    if isinstance(value, str):
        return value
    if value is not UNKNOWN:
        unfit("a path must be a text", value, node.span, frame.context.sink)
    return None


def _names(node: ast.Expr, frame: Frame) -> NameMap | None:
    """The name map in a file, or of the library (`std.gpt2`)."""
    path = _path(node, frame)
    if path is None:
        return None
    library = path.startswith("std.")
    importing = frame.file.source.name
    source = frame.context.load(importing, f"{path}.map" if library else path, not library)
    if source is None:
        help = "the library has `std.gpt2` and `std.llama`" if library else "paths are relative to the program's file"
        frame.wrong("SH203", f"there is no name map `{path}`", node.span, "not found", help=help)
        return None
    return read_names(source, frame.context)
