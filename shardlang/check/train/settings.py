"""The settings of `train` that are plain values: how long, seed, precision, clipping, schedule,
initial weights, checkpoints, log.

Values, data and optimizers are read elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from shardlang.check.context import Frame, Reported, attempted
from shardlang.check.declared import DeclaredKind, called
from shardlang.check.files.own import visible
from shardlang.check.model.arguments import Argument, by_name, declared_arguments, line_up, settled
from shardlang.check.model.operators import is_operator
from shardlang.check.program import NameMap
from shardlang.check.train.weight_names import read_names
from shardlang.check.values import UNKNOWN, unfit
from shardlang.hints.nearest import nearest, offer
from shardlang.ops.declaration import Param
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.syntax.words import Word
from shardlang.types.dim import LOW

# The settings of `train`, whose names no value may have.
SETTINGS: Mapping[str, Word] = {
    "model": Word("model = Net()", "The model that is trained. `model(x)` calls it, and `model.h` is a value of that "
                  "call, or a parameter; `model.blocks[*].h` has it of every layer of an array."),
    "data": Word('data = mnist("data/mnist", batch = batch)',
                 "The source of the examples. It declares fields, which are names of values in the lines after it."),
    "eval": Word('eval = mnist("data/mnist", split = "test", batch = batch)', "A source of the same fields. The loss "
                 "and the metrics are evaluated on all of it after each epoch, or as `evaluate` says, and at the end."),
    "loss": Word("loss = cross_entropy(model(x), label)", "One number, whose gradient trains the parameters. `loss at "
                 "SELECTOR = ..` is a loss for some parameters alone."),
    "metric": Word("metric accuracy = mean(argmax(scores, over = classes) == label)", "One number that is reported "
                   "beside the loss, without gradient. In `eval` it is over the whole set."),
    "optimizer": Word("optimizer = adamw(lr = 3e-4, weight_decay = 0.1)", "Updates the parameters. `optimizer at "
                      "**.bias = adamw(weight_decay = 0.0)` is for some alone, and takes the rest from the general one "
                      "of its kind."),
    "lr_schedule": Word("lr_schedule = warmup_cosine(warmup = 2000, min = 3e-5)", "The learning rate of each step: "
                        "`constant()`, `linear(..)` or `warmup_cosine(..)`. Without it every step has `lr`."),
    "precision": Word("precision = bf16", "The type that the run computes in: f32 (the default), f64, tf32, bf16 or "
                      "f16. bf16 and f16 are mixed, as torch.autocast: parameters and optimizer stay in f32. "
                      "`bf16(stream = bf16)` keeps what layers hand on in bf16 too."),
    "clip": Word("clip = 1.0", "The largest norm of all gradients together, as torch's clip_grad_norm_ has it. Larger "
                 "gradients are made smaller by one factor. Without it nothing is clipped."),
    "epochs": Word("epochs = 10", "How long to train: passes through the data. A run has this or `steps`."),
    "steps": Word("steps = 2000", "How long to train: updates of the parameters. A run has this or `epochs`."),
    "seed": Word("seed = 7",
                 "All random numbers and the order of examples follow from this whole number. The default is 0."),
    "init": Word('init = safetensors("weights.safetensors")', "Weights to start from, by the paths of parameters. "
                 '`names = "file.map"` is for files that name them otherwise.'),
    "checkpoint": Word('checkpoint = every(100, keep = 3, to = "checkpoints")', "Writes a checkpoint after each 100 "
                       "steps and after the last, into the folder `to`, and keeps the latest three; `keep = 0` keeps "
                       "all. `shardc run --resume` goes on from the last. (To keep less for backward, write "
                       "`recompute` in the strategy.)"),
    "log": Word("log = every(100)", "After so many steps each rank writes a line to its own log, with its times."),
    "compile": Word("compile = blocks",
                    "`blocks` compiles the functions of layers with torch.compile; the default is `none`."),
    "evaluate": Word("evaluate = every(200, best = lowest(loss), patience = 5)", "How often `eval` is evaluated, in "
                     "steps. `best` says which evaluation is best; its checkpoint is kept. `patience` ends the run "
                     "after so many evaluations that are no better."),
    "not_finite": Word("not_finite = skip", "What becomes of a step whose gradients are not finite: `stop` (the "
                       "default) ends the run, `skip` leaves the step out on all ranks."),
    "ema": Word("ema = 0.999", "Keeps an average of the weights beside them, with this decay. `evaluate = every(200, "
                "weights = ema)` evaluates the average."),
}  # fmt: skip
RESERVED = tuple(SETTINGS)
_RISE = (
    "The rate rises to lr in `warmup` steps and then falls to `min`, {}. With n steps in all and k = max(1, warmup), "
    "the rate of step s, from 1, is\n\n"
    "    lr s / k     up to step k, then\n    min + (lr - min) {}\n\nSo step k alone has lr, and the last step has min."
)
_SLOPE = (Param("warmup", "int", 0), Param("min", "number", 0.0))
SCHEDULES: Mapping[str, DeclaredKind] = {
    "constant": DeclaredKind("Every step has lr, as without `lr_schedule`."),
    "linear": DeclaredKind(_RISE.format("by equal amounts", "(n - s) / (n - k)"), _SLOPE),
    "warmup_cosine": DeclaredKind(_RISE.format("along half a cosine", "(1 + cos(pi (s - k) / (n - k))) / 2"), _SLOPE),
}
_NUMBERS = (Param("epochs", "int"), Param("steps", "int"), Param("seed", "int"), Param("clip", "number"),
            Param("ema", "number"))  # fmt: skip
_PRECISIONS = ("f32", "f64", "tf32", *LOW)
# Words that say how a device computes with a type, not what is kept.
_KEPT = {"tf32": "f32"}
_COMPILED = ("none", "blocks")
_NOT_FINITE = ("stop", "skip")
# The settings that are one of some words.
CHOICES = {"precision": _PRECISIONS, "compile": _COMPILED, "not_finite": _NOT_FINITE}


def read_settings(given: Mapping[str, ast.Setting], span: Span, frame: Frame) -> dict[str, Any]:
    """The plain settings, by name; sets the run's floating type and reports mistakes."""
    _require_length(given, span, frame)
    nodes = {name: setting.value for name, setting in given.items()}
    given_numbers = [(param, nodes[param.name]) for param in _NUMBERS if param.name in nodes]
    numbers = {param.name: _number(param, node, frame) for param, node in given_numbers}
    found = {name: number for name, number in numbers.items() if number is not UNKNOWN}
    for name, read in _READERS.items():
        if name in nodes:
            found[name] = attempted(read, nodes[name], frame)
    found["stream"] = frame.context.stream
    own = visible(frame.file, "schedule")
    found["own_schedule"] = own.get(called(nodes["lr_schedule"])) if "lr_schedule" in nodes else None
    return found


def _number(param: Param, node: ast.Expr, frame: Frame) -> Any:
    """The number that a setting is; UNKNOWN after a report."""
    name = called(node)
    if name and frame.find(name) is None and not is_operator(name):
        form = SETTINGS[param.name].form
        return frame.wrong("SH200", f"there is no `{name}` here", node.span, "unknown", help=f"write `{form}`")
    return settled(param, Argument(node.span, node), frame)


def _require_length(given: Mapping[str, ast.Setting], span: Span, frame: Frame) -> None:
    """Exactly one of epochs and steps."""
    sink = frame.context.sink
    both = [given[n] for n in ("epochs", "steps") if n in given]
    if len(both) == 2:
        labels, fact = [(both[0].span, "and this")], "`train` has both `epochs` and `steps`"
        sink.report("SH231", fact, both[1].span, "one too many", labels=labels, help="keep one of them")
    if not both:
        sink.report("SH231", "`train` needs `epochs` or `steps`", span, "how long?", help="add `epochs = 10`, say")


def _precision(node: ast.Expr, frame: Frame) -> str:
    """The type of the run's numbers, which the frame learns too, with whether layers hand on a low
    one (`bf16(stream = bf16)`); "f32" after a report."""
    text = called(node) or (node.text if isinstance(node, ast.Name) else node.span.text)
    if text in _PRECISIONS:
        kept = _KEPT.get(text, text)
        frame.context.dtype, frame.context.low = ("f32", text) if text in LOW else (kept, "")
        frame.context.stream = isinstance(node, ast.Call) and _stream(text, node, frame)
        return text
    help = offer(text, _PRECISIONS, f"it is one of {', '.join(_PRECISIONS)}")
    frame.wrong("SH237", f"there is no precision `{text}`", node.span, "unknown", help=help)
    return "f32"


def _compile(node: ast.Expr, frame: Frame) -> str:
    return _word(node, _COMPILED, "is nothing that could be compiled", frame)


def _not_finite(node: ast.Expr, frame: Frame) -> str:
    return _word(node, _NOT_FINITE, "is nothing to do where gradients are not finite", frame)


def _word(node: ast.Expr, words: tuple[str, ...], fact: str, frame: Frame) -> str:
    """One of some words; the first after a report."""
    if node.span.text in words:
        return node.span.text
    help = offer(node.span.text, words, f"it is one of {', '.join(words)}")
    frame.wrong("SH237", f"`{node.span.text}` {fact}", node.span, "here", help=help)
    return words[0]


def _stream(precision: str, node: ast.Call, frame: Frame) -> bool:
    """Whether layers hand on the low precision too."""
    given: dict[str, Argument] = {}
    if not by_name(precision, node.keywords, ("stream",) if precision in LOW else (), given, frame):
        return False
    if node.args or [a.span.text for a in given.values()] != [precision]:
        low = precision if precision in LOW else LOW[0]
        help = f"write `{low}`, or `{low}(stream = {low})`, where layers hand on {low} too"
        frame.wrong("SH237", f"`{node.span.text}` is no precision", node.span, "here", help=help)
    return bool(given)


def _schedule(node: ast.Expr, frame: Frame) -> tuple[str, Mapping[str, Any]]:
    kind, own = called(node) or node.span.text, visible(frame.file, "schedule")
    if frame.file.find(kind) is UNKNOWN:
        raise Reported  # its declaration
    if kind in own and isinstance(node, ast.Call):
        params = own[kind].settings
        arguments = declared_arguments(kind, params, node, frame, free=[param.name for param in params])
        return kind, own[kind].given(arguments)
    if kind not in SCHEDULES or not isinstance(node, ast.Call) or node.args:
        close = nearest(kind, (*SCHEDULES, *own))
        help = "write `warmup_cosine(warmup = 2000, min = 3e-5)`, `linear(...)` or `constant()`"
        help = f"did you mean `{close}(...)`?" if close and close != kind else help
        frame.refuse("SH237", f"`{node.span.text}` is no schedule of the learning rate", node.span, "here", help=help)
    found = declared_arguments(kind, SCHEDULES[kind].params, node, frame)
    return kind, {**SCHEDULES[kind].defaults, **found}


def _init(node: ast.Expr, frame: Frame) -> tuple[str, Mapping[str, Any]]:
    call = node if isinstance(node, ast.Call) and called(node) == "safetensors" else None
    named = {k.name.text: k.value for k in call.keywords} if call is not None else {}
    if call is None or len(call.args) != 1 or named.keys() - {"names"} or len(named) < len(call.keywords):
        help = 'write `init = safetensors("weights.safetensors")`, with `names = "file.map"` where its names differ'
        frame.refuse("SH237", "`init` is a file of weights", node.span, "here", help=help)
    path = _path(call.args[0], frame)
    return "safetensors", {"path": path, **{name: _names(at, frame) for name, at in named.items()}}


def _path(node: ast.Expr, frame: Frame) -> str:
    value = frame.evaluate(node)
    if isinstance(value, str):
        return value
    if value is not UNKNOWN:
        unfit("a path must be a text", value, node.span, frame.context.sink)
    raise Reported


def _names(node: ast.Expr, frame: Frame) -> NameMap:
    """The name map in a file, or of the library (`std.gpt2`)."""
    path = _path(node, frame)
    library = path.startswith("std.")
    help = "the library has `std.gpt2` and `std.llama`" if library else "paths are relative to the program's file"
    source = frame.load(f"{path}.map" if library else path, not library, f"name map `{path}`", node.span, help)
    names = None if source is None else read_names(source, frame.context)
    if names is None:
        raise Reported
    return names


_STEPS = Param("steps", "int")


def _checkpoint(node: ast.Expr, frame: Frame) -> tuple[str, Mapping[str, Any]]:
    """("every", {"steps": 100, "keep": 4, "to": "checkpoints"})."""
    help = 'write `checkpoint = every(100, keep = 4, to = "checkpoints")`'
    params = (_STEPS, Param("keep", "int", 3), Param("to", "str", "checkpoints"))
    found = _every(node, params, "`checkpoint` is how often to write one", help, frame)
    return "every", {**{p.name: p.default for p in params[1:]}, **found}


def _evaluate(node: ast.Expr, frame: Frame) -> Mapping[str, Any]:
    """{"steps": 200, "best": ("lowest", "loss"), "patience": 5}, of these what is given."""
    if not isinstance(node, ast.Call) or called(node) != "every":
        help = "write `evaluate = every(200)`, or `every(200, best = lowest(loss), patience = 5)`"
        frame.refuse("SH237", "`evaluate` is how often to evaluate", node.span, "here", help=help)
    given, sound = line_up("every", ("steps", "patience", "best", "weights"), node, frame, 1)
    best, weights = given.pop("best", None), given.pop("weights", None)
    counts = {name: settled(Param(name, "int"), argument, frame) for name, argument in given.items()}
    order = {"best": _order(best.node, frame)} if best is not None else {}
    if not sound or UNKNOWN in counts.values():
        raise Reported
    if weights is not None and weights.span.text != "ema":
        help = "write `weights = ema`, or leave it out for the weights as they are trained"
        frame.refuse("SH237", f"`{weights.span.text}` is nothing to evaluate", weights.span, "here", help=help)
    return {**counts, **order, **({"weights": "ema"} if weights is not None else {})}


def _order(node: ast.Expr | None, frame: Frame) -> tuple[str, str]:
    """`lowest(loss)` -> ("lowest", "loss")."""
    match node:
        case ast.Call(args=(ast.Name() as figure,), keywords=()) if called(node) in ("lowest", "highest"):
            return called(node), figure.text
    assert node is not None
    help = "write `best = lowest(loss)`, or `best = highest(accuracy)`"
    frame.refuse("SH237", f"`{node.span.text}` is no order of evaluations", node.span, "here", help=help)


def check_evaluation(node: ast.Expr, given: Mapping[str, Any], has_eval: bool, figures: Collection[str],
                     beside: Collection[str], frame: Frame) -> None:  # fmt: skip
    """Reports an `evaluate` that has nothing to evaluate, no figure to be best in, or no use for
    the best. beside: the other settings."""
    fact = help = ""
    _, figure = given.get("best", ("", ""))
    if not has_eval:
        fact, help = "there is nothing to evaluate", "add `eval = ...`, a source of examples"
    elif figure and figure not in figures:
        fact, help = f"an evaluation has no figure `{figure}`", offer(figure, figures, f"it has {', '.join(figures)}")
    elif "patience" in given and not figure:
        fact, help = "`patience` waits for a better evaluation", "say in what: `best = lowest(loss)`"
    elif "weights" in given and "ema" not in beside:
        fact, help = "there is no average of the weights to evaluate", "add `ema = 0.999`"
    elif figure and "patience" not in given and "checkpoint" not in beside:
        fact = "`best` has nothing to do"
        help = "add `patience = 5`, which ends the run, or `checkpoint`, which keeps the best"
    elif not given:
        fact, help = "`every()` says nothing: each epoch ends with an evaluation anyhow", "write `every(200)`, say"
    if fact:
        frame.wrong("SH237", fact, node.span, "here", help=help)


def _log(node: ast.Expr, frame: Frame) -> Mapping[str, Any]:
    """{"steps": 100}."""
    return _every(node, (_STEPS,), "`log` is how often each rank writes to its log", "write `log = every(100)`", frame)


def _every(node: ast.Expr, params: tuple[Param, ...], fact: str, help: str, frame: Frame) -> dict[str, Any]:
    """The arguments of `every`."""
    if isinstance(node, ast.Call) and called(node) == "every" and len(node.args) == 1:
        return declared_arguments("every", params, node, frame, 1)
    frame.refuse("SH237", fact, node.span, "here", help=help)


_READERS: Mapping[str, Callable[[ast.Expr, Frame], Any]] = {
    "precision": _precision, "lr_schedule": _schedule, "init": _init, "checkpoint": _checkpoint, "log": _log,
    "compile": _compile, "evaluate": _evaluate, "not_finite": _not_finite,
}  # fmt: skip
