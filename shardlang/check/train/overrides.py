"""`--set PATH=VALUE` -> what it overrides: a dim, a formal of the root model, a mesh axis, a
setting, or an argument of one.

Turns texts into expressions by place; evaluating them is left to where the place is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardlang.check.declared import called
from shardlang.check.files.removed_members import flat
from shardlang.check.train.settings import SETTINGS
from shardlang.diagnostics.diagnostic import Sink
from shardlang.hints.nearest import nearest
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse_expression

# The settings that may be set, or added. Of `model`, `loss` and `metric` later lines speak.
SETTABLE = tuple(name for name in SETTINGS if name not in ("model", "loss", "metric"))
# What else may be set: an example, and what it is.
PATHS: Mapping[str, str] = {
    "batch=64": "A dim of the file.",
    "model.d=256": "An argument or a dim of the model that is trained.",
    "three_d.mp=4": "An axis of a strategy; `auto` takes the ranks that the others leave.",
    "train.optimizer.lr=0.01": "An argument of a setting, written or not: `shardc explain adamw` lists those of adamw.",
}
# What takes the place of names, by what these belong to: "dim", "model", "train" or a strategy. The
# root model may lack a name of "model", and a setting one of "train" that has a dot.
Overrides = Mapping[str, Mapping[str, ast.Expr]]


def read_overrides(file: ast.File, given: Mapping[str, str], sink: Sink) -> Overrides:
    """Sort overrides by what they name; a path that nothing has is reported."""
    found: dict[str, dict[str, ast.Expr]] = {}
    known = list(places(file))
    # Which arguments there are besides is known where the model and the settings are read.
    open = ["model"] * (root_model(file) is not None) + [f"train.{name}" for name, _ in calls(file)]
    for path, text in given.items():
        expression, dim = parse_expression(Source(f"--set {path}", text), sink), shared(file, path)
        if expression is None:
            continue
        if dim is not None:
            fact = f"`{path}` is the dim `{dim}`, which others have too: it is set for all of them"
            sink.report("SH224", fact, None, help=f"`--set {dim}={text}`")
        elif path in known or path.rpartition(".")[0] in open:
            kind, _, name = path.partition(".") if "." in path else ("dim", "", path)
            found.setdefault(kind, {})[name] = expression
        else:
            fact = f"nothing in {file.source.name} has the path `{path}`"
            whole = f"train.{path}"
            meant = [whole] if whole.rpartition(".")[0] in open else _meant(path, known)
            wholes = dict.fromkeys(shared(file, place) or place for place in meant)
            help = f"write the whole path: {' or '.join(f'`--set {whole}={text}`' for whole in wholes)}"
            sink.report("SH224", fact, None, help=help if wholes else _offered(file, path, known))
    return found


def _meant(path: str, places: list[str]) -> list[str]:
    """The places whose path ends as `path` does, in all its names or in the last."""
    last = path.rpartition(".")[2]
    return [p for p in places if p.endswith(f".{path}")] or [p for p in places if p.rpartition(".")[2] == last]


def _offered(file: ast.File, path: str, places: list[str]) -> str:
    """Help for a path that is none of the places."""
    taken = next((u for u in file.items if isinstance(u, ast.Use) if path in (n.text for n in u.names)), None)
    if taken is not None:
        return f"`{path}` is of `{taken.path}`: change it there"
    of, _, rule = path.partition(".")
    axes = [place for place in places if place.startswith(f"{of}.")]
    if axes and of not in ("train", "model") and nearest(path, places) is None:
        return f"of a strategy only axes can be set, as `{axes[0]}`; write `{rule}` in `{of}` itself"
    ends = {place.rpartition(".")[2]: place for place in places}
    close = nearest(path, places) or ends.get(nearest(path, ends) or "")
    return f"did you mean `{close}`?" if close else f"there are {', '.join(f'`{p}`' for p in places)}"


def shared(file: ast.File, place: str) -> str | None:
    """The dim of the file that an argument of a setting of `train` is, if it is one."""
    dims = {e.name.text for item in file.items if isinstance(item, ast.DimDecl) for e in item.entries}
    for name, call in calls(file):
        for keyword in call.keywords:
            if place == f"train.{name}.{keyword.name.text}" and isinstance(keyword.value, ast.Name):
                return keyword.value.text if keyword.value.text in dims else None
    return None


def places(file: ast.File) -> Iterator[str]:
    """Everything that may be set: `batch`, `model.d`, `train.seed`, `three_d.mp`."""
    root = root_model(file)
    for item in file.items:
        match item:
            case ast.DimDecl():
                yield from (entry.name.text for entry in item.entries)
            case ast.Model() if root == item.name.text:
                yield from of_model(item)
            case ast.Train():
                yield from (f"train.{name}" for name in SETTABLE)
                yield from (f"train.{name}.{k.name.text}" for name, call in calls(file) for k in call.keywords)
            case ast.Strategy():
                meshes = [r for r in item.rules if isinstance(r, ast.Mesh)]
                yield from (f"{item.name.text}.{a.name.text}" for m in meshes for a in m.axes)


def of_model(model: ast.Model) -> Iterator[str]:
    """The paths of what may be set of the model that is trained."""
    yield from (f"model.{f.name.text}" for f in model.formals if isinstance(f.kind, ast.Name))
    yield from (f"model.{name}" for name in member_dims(model.members))


def calls(file: ast.File) -> Iterator[tuple[str, ast.Call]]:
    """The settings of `train` whose arguments may be set, with their calls."""
    for setting in (s for item in file.items if isinstance(item, ast.Train) for s in item.settings):
        if _settable(setting) and isinstance(setting.value, ast.Call):
            yield setting.name.text, setting.value


def _settable(setting: ast.Setting) -> bool:
    return setting.name.text in SETTABLE and not setting.keyword and not setting.at


def with_overrides(train: ast.Train, overrides: Mapping[str, ast.Expr]) -> ast.Train:
    """`train` with what is set from outside: `clip`, `optimizer.lr`, `checkpoint.keep`. `epochs`
    takes the place of `steps`, and the other way round."""
    gone = {other for name, other in (("epochs", "steps"), ("steps", "epochs")) if name in overrides} - {*overrides}
    settings = [s for s in train.settings if not (_settable(s) and s.name.text in gone)]
    has = {setting.name.text for setting in settings if _settable(setting)}
    added = [
        ast.Setting("", ast.Name(name, span=train.span), (), value, span=value.span)
        for name, value in overrides.items()
        if name in SETTABLE and name not in has
    ]
    return replace(train, settings=(*(_overridden(s, overrides) for s in settings), *added))


def _overridden(setting: ast.Setting, overrides: Mapping[str, ast.Expr]) -> ast.Setting:
    """A setting with the value and the arguments that are set from outside."""
    if not _settable(setting):
        return setting
    name = setting.name.text
    value = overrides.get(name, setting.value)
    given = {key.partition(".")[2]: node for key, node in overrides.items() if key.startswith(f"{name}.")}
    if given and isinstance(value, ast.Call):
        others = [k for k in value.keywords if k.name.text not in given]
        added = [ast.Keyword(ast.Name(key, span=node.span), node, span=node.span) for key, node in given.items()]
        value = replace(value, keywords=(*others, *added))
    return replace(setting, value=value)


def member_dims(members: Sequence[ast.Member]) -> list[str]:
    """The dims that a model declares, those under a condition too."""
    return [e.name.text for m in flat(members) if isinstance(m, ast.DimDecl) for e in m.entries]


def root_model(file: ast.File) -> str | None:
    """The name of the model that `train` trains."""
    trains = (item for item in file.items if isinstance(item, ast.Train))
    models = (called(s.value) for train in trains for s in train.settings if s.name.text == "model")
    return next((model for model in models if model), None)
