"""`--set PATH=VALUE` -> what it overrides: a dim, a formal of the root model, a mesh axis, a
setting, or an argument of one.

Turns texts into expressions by place; evaluating them is left to where the place is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardlang.check.declared import called
from shardlang.check.files.removed_members import flat
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.nearest import nearest
from shardlang.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse_expression

# The settings whose arguments may be set.
_CALLS = ("optimizer", "lr_schedule", "data", "eval", "checkpoint", "log", "evaluate")
# Settings that may be set, or added, as a whole: `train.evaluate=every(5)`.
_WHOLE = ("evaluate", "checkpoint", "lr_schedule", "init")
# What takes the place of names, by what these belong to: "dim", "model", "train" or a strategy. The
# root model may lack a name of "model", and a setting one of "train" that has a dot.
Overrides = Mapping[str, Mapping[str, ast.Expr]]


def read_overrides(file: ast.File, given: Mapping[str, str], strategy: str | None, sink: Sink) -> Overrides:
    """Sort overrides by what they name; an unknown or ambiguous path is reported. An axis that
    several strategies have is that of `strategy`, the one asked for."""
    found: dict[str, dict[str, ast.Expr]] = {}
    others = {s.name.text for s in file.strategies if strategy not in (None, s.name.text)}
    places = list(_places(file))
    # Which arguments there are besides is known where the model and the settings are read.
    arguments = ("model", *(f"train.{name}" for name, _ in _calls(file)))
    settings = [f"train.{name}" for name in _WHOLE if root_model(file) is not None]
    for path, text in given.items():
        expression = parse_expression(Source(f"--set {path}", text), sink)
        if expression is None:
            continue
        full = [p for p in places if path in (p, p.partition(".")[2])]
        full = full or [p for p in places if path == p.rpartition(".")[2]]
        if len(full) > 1:
            full = [p for p in full if p.partition(".")[0] not in others]
        full = full or [p for p in (path, f"train.{path}") if p.rpartition(".")[0] in arguments]
        full = full or [p for p in (path, f"train.{path}") if p in settings]
        shared = _shared(file, full[0]) if len(full) == 1 else None
        if shared is not None:
            fact = f"`{full[0]}` is the dim `{shared}`, which others have too: it is set for all of them"
            sink.report("SH224", fact, None, help=f"`--set {shared}={text}`")
        elif len(full) > 1:
            help = f"say which: `--set {full[0]}={text}`"
            sink.report("SH224", f"`--set {path}` could mean {_listed(full)}", None, help=help)
        elif not full:
            close = nearest(path, [*places, *(p.partition(".")[2] for p in places)])
            help = f"did you mean `{_typed(close)}`?" if close else f"there are {_listed(places)}"
            sink.report("SH224", f"there is no `{path}` to set in {file.source.name}", None, help=help)
        else:
            kind, _, name = full[0].partition(".")
            found.setdefault(kind, {})[name] = expression
    return found


def _shared(file: ast.File, place: str) -> str | None:
    """The dim of the file that an argument of a setting of `train` is, if it is one."""
    dims = {e.name.text for item in file.items if isinstance(item, ast.DimDecl) for e in item.entries}
    for name, call in _calls(file):
        for keyword in call.keywords:
            if place == f"train.{name}.{keyword.name.text}" and isinstance(keyword.value, ast.Name):
                return keyword.value.text if keyword.value.text in dims else None
    return None


def _typed(place: str) -> str:
    return place.removeprefix("dim.")


def _listed(places: list[str]) -> str:
    return ", ".join(f"`{_typed(p)}`" for p in places[:12]) + (" and more" if len(places) > 12 else "")


def _places(file: ast.File) -> Iterator[str]:
    """Everything that may be set: `dim.batch`, `model.d`, `train.seed`, `three_d.mp`."""
    root = root_model(file)
    for item in file.items:
        match item:
            case ast.DimDecl():
                yield from (f"dim.{entry.name.text}" for entry in item.entries)
            case ast.Model() if root == item.name.text:
                yield from (f"model.{f.name.text}" for f in item.formals if isinstance(f.kind, ast.Name))
                yield from (f"model.{name}" for name in member_dims(item.members))
            case ast.Train():
                names = ("epochs", "steps", "seed", "clip", "ema", "precision", "compile")
                yield from (f"train.{name}" for name in names)
                yield from (f"train.{name}.{k.name.text}" for name, call in _calls(file) for k in call.keywords)
            case ast.Strategy():
                meshes = [r for r in item.rules if isinstance(r, ast.Mesh)]
                yield from (f"{item.name.text}.{a.name.text}" for m in meshes for a in m.axes)


def _calls(file: ast.File) -> Iterator[tuple[str, ast.Call]]:
    """The settings of `train` whose arguments may be set, with their calls."""
    for setting in (s for item in file.items if isinstance(item, ast.Train) for s in item.settings):
        if setting.name.text in _CALLS and not setting.at and isinstance(setting.value, ast.Call):
            yield setting.name.text, setting.value


def with_arguments(train: ast.Train, overrides: Mapping[str, ast.Expr]) -> ast.Train:
    """`train` with the arguments that are set from outside: `optimizer.lr`, `checkpoint.keep`."""
    settings = []
    for setting in train.settings:
        call, name = setting.value, setting.name.text
        given = {key.partition(".")[2]: node for key, node in overrides.items() if key.startswith(f"{name}.")}
        if given and not setting.at and isinstance(call, ast.Call):
            others = [k for k in call.keywords if k.name.text not in given]
            added = [ast.Keyword(ast.Name(key, span=node.span), node, span=node.span) for key, node in given.items()]
            setting = replace(setting, value=replace(call, keywords=(*others, *added)))
        settings.append(setting)
    return replace(train, settings=tuple(settings))


def member_dims(members: Sequence[ast.Member]) -> list[str]:
    """The dims that a model declares, those under a condition too."""
    return [e.name.text for m in flat(members) if isinstance(m, ast.DimDecl) for e in m.entries]


def root_model(file: ast.File) -> str | None:
    """The name of the model that `train` trains."""
    trains = (item for item in file.items if isinstance(item, ast.Train))
    models = (called(s.value) for train in trains for s in train.settings if s.name.text == "model")
    return next((model for model in models if model), None)
